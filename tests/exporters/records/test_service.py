"""Records from the wire to the histograms, the window and another receiver; no process is started."""

import importlib.util
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from kvdiag.errors import InputError, UnavailableError, UndeterminedError
from kvdiag.model.record import HandleTransfer
from kvdiag.model.span import Span
from kvdiag.model.transfer import TransferRecord
from kvdiag_exporters.catalog import Buckets
from kvdiag_exporters.collectors import joined_records
from kvdiag_exporters.collectors.base import Engine, Setup, create_all
from kvdiag_exporters.config import load
from kvdiag_exporters.exposition import families
from kvdiag_exporters.records.otlp_export import OtlpExport, attributes
from kvdiag_exporters.records.otlp_http import OtlpHttp
from kvdiag_exporters.records.service import Records
from kvdiag_exporters.records.settings import RecordsConfig
from tests.exporters.records.otlp_export import SPANS, request, rows

ENGINES = (
    Engine(name="vllm-prefill", node="p0", role="prefill"),
    Engine(name="vllm-decode", node="d0", role="decode"),
)


@contextmanager
def running(engines: tuple[Engine, ...] = ENGINES, **config: object) -> Iterator[Setup]:
    """Start records as the exporter does; nothing is attributed."""
    setup = Setup(node="host-a", engines=engines)
    settings = RecordsConfig(attribution_interval_s=0, **config)  # type: ignore[arg-type]
    records = Records(settings, engines, "host-a", setup.stream, setup.clock)
    setup = replace(setup, records=records)
    records.start(setup.stream)
    try:
        yield setup
    finally:
        records.stop()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def send(address: str, body: bytes) -> None:
    headers = {"Content-Type": "application/x-protobuf"}
    with urllib.request.urlopen(
        urllib.request.Request(f"http://{address}/v1/traces", data=body, headers=headers), timeout=10
    ) as answer:
        assert answer.status == 200


def test_spans_become_histograms_with_exemplars_and_rows() -> None:
    with running(otlp_http="127.0.0.1:0", otlp_grpc="127.0.0.1:0", settle_s=0.0) as setup:
        assert setup.records is not None
        collectors = create_all(setup)
        send(setup.records.addresses["otlp_http"], request(rows(SPANS)).SerializeToString())
        wait_for(lambda: len(setup.records.window.shown()[0]) == 12)  # type: ignore[union-attr]
        samples = [*collectors["records"].collect(), *collectors["joined_records"].collect()]
    found = {(one.metric.name, one.labels): one.value for one in samples}
    ttft = found["kvdiag_ttft_seconds", ("p0", "d0", "")]
    assert isinstance(ttft, Buckets)
    assert sum(ttft.counts) == 12
    assert found["kvdiag_records_requests_total", ("joined",)] == 12
    assert found["kvdiag_records_spans_total", ("foreign",)] == 2
    assert found["kvdiag_otlp_http_dropped_total", ("rejected",)] == 0

    class Once(Collector):
        def collect(self) -> list[object]:  # type: ignore[override]
            return list(families(samples))

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Once())
    text = generate_latest(registry).decode()  # type: ignore[no-untyped-call]
    parsed = list(text_string_to_metric_families(text))  # type: ignore[no-untyped-call]
    exemplars = [one.exemplar.labels for family in parsed for one in family.samples if one.exemplar]
    ids = {row["trace_id"] for row in rows(SPANS)}
    assert exemplars
    assert {labels["trace_id"] for labels in exemplars} <= ids
    assert all(sum(len(name) + len(value) for name, value in labels.items()) <= 128 for labels in exemplars)


def test_a_long_id_leaves_room_in_an_exemplar() -> None:
    with running() as setup:
        records = create_all(setup)["records"]
        setup.stream.give([TransferRecord(request_id="x" * 500, arrival_s=1.0, ttft_s=0.1, trace_id="a" * 32)])
        (ttft,) = [one.value for one in records.collect() if one.metric.name == "kvdiag_ttft_seconds"]
        assert isinstance(ttft, Buckets)
        (exemplar,) = [one for one in ttft.exemplars if one is not None]
        assert sum(len(name) + len(value) for name, value in exemplar.labels) <= 128


def test_what_is_still_waited_for_at_the_end_is_given_on() -> None:
    with running(otlp_http="127.0.0.1:0") as setup:
        assert setup.records is not None
        send(setup.records.addresses["otlp_http"], request(rows(SPANS)[2:3]).SerializeToString())
    (row,) = setup.records.window.shown()[0]
    assert row.missing == ("nothing from the decode side: recording ended",)
    assert row.ttft_s is None


def test_handles_are_counted_by_transport_and_errors_are_bounded() -> None:
    with running() as setup:
        assert setup.records is not None
        collector = create_all(setup)["joined_records"]
        done = HandleTransfer(
            source="nixl span", node="d0", direction="pull", backend="UCX", duration_s=0.02, post_s=0.001, bytes=4096.0,
            descriptors=4.0,
        )  # fmt: skip
        failed = [replace(done, error=f"error {number}") for number in range(1000)]
        setup.records.hub.take([done, *failed])
        found = {(one.metric.name, one.labels): one.value for one in collector.collect()}
    sizes = found["kvdiag_handle_size_bytes", ("d0", "pull", "UCX")]
    assert isinstance(sizes, Buckets)
    assert (sum(sizes.counts), sizes.sum) == (1, 4096.0)
    failures = {labels: value for (name, labels), value in found.items() if name == joined_records.FAILED.name}
    assert len(failures) <= 257
    assert sum(value for value in failures.values() if isinstance(value, float)) == 1000


def test_a_log_counts_from_the_moment_of_the_start(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("NIXL transfer failure: old | Context: {'request_id': 'a'}\n")
    engine = Engine(name="e", node="n", role="decode", logs=(log,))
    with running((engine,)) as setup, log.open("a") as file:
        file.write("NIXL transfer failure: new | Context: {'request_id': 'cmpl-b-0-00112233'}\n")
    assert setup.records is not None
    (transfer,) = setup.records.window.shown()[1]
    assert (transfer.error, transfer.keys, transfer.node) == ("new", (("id", "b"),), "n")


def test_joined_requests_go_on_to_another_receiver_in_their_own_trace() -> None:
    found: list[Span] = []
    server = OtlpHttp("127.0.0.1", 0, found.extend)
    server.start()
    export = OtlpExport(f"http://{server.address}")
    record = TransferRecord(
        request_id="r", arrival_s=1000.0, ttft_s=0.5, queue_s=0.1, kv_wait_s=0.2, prompt_tokens=512.0,
        output_tokens=8.0, trace_id="0af7651916cd43dd8448eb211c80319c", prefill_node="p0", decode_node="d0",
        evidence={"kv_wait_s": "derived"}, missing=("nothing",),
    )  # fmt: skip
    try:
        export.take([record, replace(record, request_id="s", trace_id="no trace", ttft_s=None)])
        wait_for(lambda: export.sent == 2)
    finally:
        export.stop()
        server.stop()
    first, second = found
    assert (first.name, first.trace_id) == ("kvdiag.request", record.trace_id)
    assert len(second.trace_id) == 32
    assert second.trace_id != record.trace_id
    assert (first.start_s, first.end_s) == (1000.0, 1000.5)
    assert first.attributes["gen_ai.usage.input_tokens"] == 512
    assert first.attributes["kvdiag.stage.kv_wait"] == 0.2
    assert first.attributes["kvdiag.evidence.kv_wait"] == "derived"
    assert "kvdiag.stage.wire" not in attributes(record)
    assert export.dropped == 0


def test_a_receiver_that_is_not_there_costs_nothing_but_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class Failing(SpanExporter):
        def export(self, spans: object) -> SpanExportResult:
            return SpanExportResult.FAILURE

    export = OtlpExport("http://127.0.0.1:9", Failing())
    export.take([TransferRecord(request_id=str(number), arrival_s=1.0) for number in range(100)])
    wait_for(lambda: export.dropped == 100)
    export.stop()
    assert export.sent == 0


@pytest.mark.parametrize(("field", "package"), [
    ("otlp_http", "opentelemetry.proto"), ("otlp_grpc", "grpc"), ("export", "opentelemetry.exporter.otlp.proto.http"),
])  # fmt: skip
def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, field: str, package: str) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == package else find_spec(name))
    value = "http://127.0.0.1:1" if field == "export" else "127.0.0.1:0"
    message = re.escape(f"records.{field} needs the Python package {package}: pip")
    with pytest.raises(UndeterminedError, match=message), running(ENGINES, **{field: value}):
        pass


def test_an_address_in_use_is_told_by_its_field() -> None:
    with running(otlp_http="127.0.0.1:0") as setup:
        assert setup.records is not None
        taken = setup.records.addresses["otlp_http"]
        with (
            pytest.raises(UnavailableError, match=re.escape(f"records.otlp_http: cannot listen on {taken}")),
            running(otlp_http=taken),
        ):
            pass


@pytest.mark.parametrize(("text", "message"), [
    ('otlp_http = "4318"', "records.otlp_http is '4318'; give ADDR:PORT"),
    ("wait_s = 0", "records.wait_s: Expected `float` >= 1"),
    ('export = "collector:4318"', "records.export: give the address of an OTLP/HTTP receiver"),
    ("windows_s = 1", "records: unknown field `windows_s`; did you mean `window_s`?"),
])  # fmt: skip
def test_a_wrong_setting_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "exporter.toml"
    path.write_text(f"[records]\n{text}\n")
    with pytest.raises(InputError, match=re.escape(message)):
        load(path)
