"""The memory of records: its bounds, its columns, the document of it, and the attribution over it."""

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from kvdiag.errors import UsageError
from kvdiag.model.bundle import CounterSeries, RequestColumns
from kvdiag.model.record import HandleTransfer, WindowRecord
from kvdiag.model.transfer import TransferRecord
from kvdiag.report.json import published_schema
from kvdiag_exporters.catalog import Metric, Recorded, Sample
from kvdiag_exporters.collectors.base import Engine, Setup
from kvdiag_exporters.derived.online_causes import create
from kvdiag_exporters.records.api import records_document
from kvdiag_exporters.records.attribution import OnlineAttribution
from kvdiag_exporters.records.counter_window import CounterWindow
from kvdiag_exporters.records.service import Records
from kvdiag_exporters.records.settings import RecordsConfig
from kvdiag_exporters.records.window import RecordWindow
from kvdiag_exporters.stream import RecordStream
from tests.exporters.host import StillClock


def row(number: int, **values: object) -> TransferRecord:
    given = {"ttft_s": 1.0, "queue_s": 0.2, "kv_wait_s": 0.3, "prefill_node": "p0", "decode_node": "d0", **values}
    return TransferRecord(request_id=f"r{number}", arrival_s=float(number), **given)  # type: ignore[arg-type]


def columns_of(window: RecordWindow, since_s: float) -> RequestColumns:
    found = window.columns(since_s)
    assert found is not None
    assert found[1] == len(found[0])
    return found[0]


def test_of_many_rows_some_are_drawn_evenly() -> None:
    window = RecordWindow()
    window.add_requests([row(number) for number in range(1000)])
    found = window.columns(200.0, most_rows=100)
    assert found is not None
    columns, count = found
    assert (len(columns), count) == (100, 800)
    arrival_s = columns.numbers["arrival_s"]
    assert arrival_s[0] >= 200
    assert (np.diff(arrival_s) > 0).all()
    assert np.diff(arrival_s).max() < 16
    window.add_requests([row(1000)])  # nothing of it is still looked at


def test_the_newest_rows_are_kept_and_come_out_by_arrival() -> None:
    window = RecordWindow(most_rows=10, most_shown=4)
    window.add_requests([row(number) for number in (*range(20, 30), *range(10))])
    columns = columns_of(window, 0.0)
    assert columns.numbers["arrival_s"].tolist() == [float(number) for number in range(10)]
    assert [one.request_id for one in window.shown()[0]] == ["r6", "r7", "r8", "r9"]
    window.add_requests([row(100, decode_node="d1", bytes=4096.0, queue_s=None)])
    columns = columns_of(window, 5.0)
    assert columns.numbers["arrival_s"].tolist() == [5.0, 6.0, 7.0, 8.0, 9.0, 100.0]
    assert [columns.labels["decode_node"].names[code] for code in columns.labels["decode_node"].codes] == [
        *["d0"] * 5, "d1",
    ]  # fmt: skip
    assert np.isnan(columns.numbers["queue_s"]).tolist() == [False] * 5 + [True]
    assert "wire_s" not in columns.numbers
    assert "direction" not in columns.labels
    assert window.columns(101.0) is None


@pytest.mark.parametrize("values", [
    {"ttft_s": None}, {"ttft_s": -1.0}, {"queue_s": 0.9}, {"queue_s": -0.1}, {"queue_s": float("nan")},
    {"ttft_s": float("inf")},
])  # fmt: skip
def test_rows_that_no_bundle_may_hold_are_shown_but_not_attributed(values: dict[str, float]) -> None:
    window = RecordWindow()
    window.add_requests([row(1, **values)])
    assert window.columns(0.0) is None
    assert len(window.shown()[0]) == 1


def filled() -> RecordWindow:
    window = RecordWindow()
    window.add_requests([row(1, trace_id="ab"), row(2, decode_node="d1", evidence={"kv_wait_s": "derived"})])
    window.add_pieces([
        HandleTransfer(source="nixl span", keys=(("trace", "ab"),), node="d0", duration_s=0.1),
        HandleTransfer(source="vllm plugin", node="d1", bytes=5.0),
        WindowRecord(source="vllm log", node="d1", engine=None, start_s=0.0, end_s=10.0, values={"transfers": 3.0}),
    ])  # fmt: skip
    return window


@pytest.mark.parametrize(("query", "counts"), [
    ("", [2, 2, 1]), ("limit=1", [1, 1, 1]), ("node=d1", [1, 1, 1]), ("node=p0", [2, 0, 0]),
    ("trace_id=ab", [1, 1, 0]), ("request_id=r2", [1, 0, 0]), ("node=d0&trace_id=ab", [1, 1, 0]),
])  # fmt: skip
def test_the_document_shows_what_was_asked_for(query: str, counts: list[int]) -> None:
    document = json.loads(records_document(filled(), query))
    jsonschema.validate(document, published_schema("kvdiag.records-1"))
    assert [len(document[kind]) for kind in ("requests", "transfers", "windows")] == counts


@pytest.mark.parametrize(("query", "message"), [
    ("limit=0", "limit is '0'"), ("limit=99999999999999", "limit is"), ("limit=x", "from 1 to 2000"),
    ("nodes=a", "'nodes' is not known; there are limit, node"),
])  # fmt: skip
def test_a_wrong_query_is_named(query: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        records_document(filled(), query)


def slowed(count: int = 600) -> list[TransferRecord]:
    """Return requests whose wait for the cache grows tenfold at half time, for no reason that counters show."""
    random = np.random.default_rng(3)
    found = []
    for number in range(count):
        wait_s = float(random.gamma(4, 0.01)) * (10 if number > count / 2 else 1)
        queue_s, prefill_s = float(random.gamma(2, 0.01)), 0.1
        found.append(
            row(number, ttft_s=queue_s + prefill_s + wait_s, queue_s=queue_s, prefill_s=prefill_s, kv_wait_s=wait_s)
        )
    return found


def test_the_attribution_of_the_window_finds_the_stage_that_varies() -> None:
    clock = StillClock()
    clock.now_s = 700.0 - 1.7e9
    window, counters = RecordWindow(), CounterWindow({}, {"p0": "prefill", "d0": "decode"})
    online = OnlineAttribution(window, counters, {"p0": "prefill", "d0": "decode"}, clock, 60.0, 700.0)
    assert online.attribute().error == "0 requests in the last 700 s, at least 50 are needed"
    window.add_requests(slowed())
    found = online.attribute()
    assert (found.requests, found.error) == (600, "")
    assert found.diagnosis is not None
    shares = {stage.stage: stage.share_of_variance for stage in found.diagnosis.stages}
    assert shares["kv_wait_s"] > 0.9
    assert sum(shares.values()) == pytest.approx(1.0)
    assert online.last is found


def test_an_attribution_that_fails_says_why_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    window = RecordWindow()
    clock = StillClock()
    clock.now_s = 700.0 - 1.7e9
    online = OnlineAttribution(window, CounterWindow({}, {}), {}, clock, 60.0, 700.0)
    window.add_requests([row(number, queue_s=None, kv_wait_s=None) for number in range(60)])
    assert online.attribute().error == "none of the last 60 requests has a stage"
    window.add_requests(slowed(60))
    monkeypatch.setattr("kvdiag.attribution.diagnose", lambda bundle: 1 / 0)
    for _ in range(3):
        assert online.attribute().error == "ZeroDivisionError: division by zero"
    assert len(caplog.messages) == 1


RECEIVED = Metric(
    name="kvdiag_test_receive_bytes_total",
    kind="counter",
    unit="bytes",
    labels=("node", "engine", "device"),
    help="Received.",
    recorded=(Recorded(name="nic.rx_bytes", unit="B", scale=4.0),),
)


def test_counters_are_kept_as_the_recorder_writes_them() -> None:
    counters = CounterWindow({}, {"host-a": "both"})
    for second in range(3):
        samples: list[Sample] = [
            RECEIVED.sample(100.0 * second, "host-a", "", "eth0"),
            RECEIVED.sample(1.0, "elsewhere", "", "eth0"),
        ]
        counters.observe(samples, 1000.0 + second)
    counters.observe(samples, 1000.0)  # the clock stepped back: nothing is dated twice
    (series,), metrics = counters.series(1001.0)
    assert isinstance(series, CounterSeries)
    assert (series.node, series.device) == ("host-a", "eth0")
    assert (series.time_s.tolist(), series.value.tolist()) == ([1001.0, 1002.0], [400.0, 800.0])
    assert metrics[series.metric].kind == "counter"


def test_shares_and_verdict_are_metrics_and_a_finding(tmp_path: Path) -> None:
    clock = StillClock()
    clock.now_s = 700.0 - 1.7e9
    engines = (Engine(name="e", node="d0", role="decode"),)
    config = RecordsConfig(window_s=700.0)
    records = Records(config, engines, "host-a", RecordStream(), clock)
    setup = Setup(node="host-a", engines=engines, records=records)
    derivation = create(setup)
    assert derivation is not None
    assert derivation.derive((), 0.0).samples == []
    records.window.add_requests(slowed())
    result = records.attribution.attribute()
    derived = derivation.derive((), 0.0)
    found = {(one.metric.name, one.labels): one.value for one in derived.samples}
    share = found["kvdiag_ttft_stage_variance_share", ("kv_wait",)]
    assert isinstance(share, float)
    assert share > 0.9
    assert found["kvdiag_attribution_requests", ()] == 600.0
    causes = [labels for name, labels in found if name == "kvdiag_ttft_variance_share"]
    assert ("unexplained",) in causes
    assert result.diagnosis is not None
    assert [one.code for one in derived.findings] == [
        one for one in [result.diagnosis.verdict.cause] if result.diagnosis.verdict.status == "cause"
    ]
    assert create(Setup(node="host-a")) is None


def test_a_clock_that_was_years_ahead_leaves_neither_requests_nor_counters_of_a_time_to_come() -> None:
    clock = StillClock()
    clock.now_s = 700.0 - 1.7e9
    window, counters = RecordWindow(), CounterWindow({}, {"host-a": "both"})
    online = OnlineAttribution(window, counters, {"p0": "prefill", "d0": "decode"}, clock, 60.0, 700.0)
    window.add_requests(slowed())
    healthy = online.attribute()
    window.add_requests([replace(one, arrival_s=one.arrival_s + 6e8) for one in slowed(60)])
    assert online.attribute().requests == healthy.requests
    for time_s in (1.0, 2.0, 6e8, 6e8 + 1, 3.0, 4.0):
        counters.observe([RECEIVED.sample(time_s, "host-a", "", "eth0")], time_s)
    (series,), _ = counters.series(0.0)
    assert series.time_s.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert series.value.tolist() == [4.0, 8.0, 12.0, 16.0]
