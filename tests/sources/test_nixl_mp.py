import shutil
from pathlib import Path

import pytest

from kvdiag.model.missing import Missing
from kvdiag.sources.base import Context
from kvdiag.sources.nixl_mp import SOURCE, parse_store, read_stores

STORES = Path(__file__).parents[1] / "fixtures/nixl/stores"


def test_the_totals_are_those_of_the_agents_own_metrics() -> None:
    found = read_stores(STORES / "two-processes")
    assert not isinstance(found, Missing)
    assert found.unreadable == {}
    target, initiator = found.stores
    assert (target.agent, target.pid, target.local_rank, target.hostname) == ("target", 29907, "0", "vm")
    assert {name: value for name, value in target.totals.items() if value} == {"memory_registered": 67108864}
    # What the same process served as /metrics at that moment.
    assert {name: value for name, value in initiator.totals.items() if value} == {
        "tx_bytes": 83890176, "rx_bytes": 1310720, "tx_requests_num": 21, "rx_requests_num": 20,
        "memory_registered": 67108864, "xfer_time": 906388, "xfer_post_time": 111237,
    }  # fmt: skip
    xfer = initiator.histograms["xfer_time"]
    assert sum(xfer.counts) == 41
    assert dict(zip(xfer.bounds_s, xfer.counts, strict=False))[0.01] == 11
    assert xfer.sum_s == pytest.approx(0.906388)
    assert sorted(initiator.histograms) == ["xfer_post_time", "xfer_time"]


def test_two_agents_of_one_process_are_told_apart() -> None:
    found = read_stores(STORES / "one-process")
    assert not isinstance(found, Missing)
    assert [(one.agent, one.pid, one.instance) for one in found.stores] == [
        ("prefill-0", 4951, 0),
        ("decode-0", 4951, 1),
    ]


def test_the_heartbeat_ages_with_this_hosts_clock() -> None:
    path = next((STORES / "one-process").iterdir())
    data = path.read_bytes()
    updated_s = int.from_bytes(data[24:32], "little") / 1e9
    assert parse_store(data, "x", updated_s + 31.5).heartbeat_age_s == pytest.approx(31.5)
    assert isinstance(parse_store(data, "x", None).heartbeat_age_s, Missing)


@pytest.mark.parametrize(("change", "reason"), [
    (lambda data: data[:100], "holds no NIXL store: 100 bytes"),
    (lambda data: b"\0" * 8 + data[8:], "holds no NIXL store"),
    (lambda data: data[:8] + b"\2" + data[9:], "schema 2"),
    (lambda data: data[:-1], "6799 bytes: not known"),
    (lambda data: data[:40] + b"\xff" * 8 + data[48:], "buckets"),
])  # fmt: skip
def test_what_is_no_store_is_told_and_hides_no_other(change, reason: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    good, bad = sorted((STORES / "one-process").iterdir())
    shutil.copy(good, tmp_path)
    (tmp_path / bad.name).write_bytes(change(bad.read_bytes()))
    found = SOURCE.read(Context(endpoints={"nixl_telemetry": str(tmp_path)}))
    assert not isinstance(found, Missing)
    assert [one.agent for one in found.stores] == ["prefill-0"]
    assert reason in found.unreadable[str(tmp_path / bad.name)]


def test_a_missing_folder_is_missing(tmp_path: Path) -> None:
    assert isinstance(SOURCE.read(Context()), Missing)
    assert isinstance(read_stores(tmp_path / "none"), Missing)
