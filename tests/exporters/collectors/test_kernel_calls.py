"""What the kernel's histograms say, as metrics by engine."""

import errno
from pathlib import Path

import pytest

from kvdiag_exporters.catalog import Buckets
from kvdiag_exporters.collectors.base import Setup, create_all
from kvdiag_exporters.collectors.kernel_calls import AGAIN_S, KernelCallsCollector
from kvdiag_exporters.kernel_calls.probe import FULL
from kvdiag_exporters.kernel_calls.totals import BOUNDS, EXPONENTS
from kvdiag_exporters.recorder import chosen, number, roles_of
from tests.exporters.host import StillClock, write_host
from tests.exporters.kernel_calls.tracing import FakeTracefs

REG, DEREG, PIN, MODIFY = "ib_uverbs_reg_mr", "ib_dereg_mr_user", "ib_umem_get", "ib_modify_qp_with_udata"
HOST = "pid:[4026531836]"


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    found = write_host(tmp_path)
    (found.context.procfs / "1/ns").mkdir(parents=True)
    (found.context.procfs / "1/ns/pid").symlink_to(HOST)
    return found


@pytest.fixture
def files() -> FakeTracefs:
    return FakeTracefs()


def values(collector: KernelCallsCollector) -> dict[tuple[str, ...], float | Buckets]:
    return {(one.metric.name.removeprefix("kvdiag_rdma_"), *one.labels[1:]): one.value for one in collector.collect()}


def buckets(found: dict[tuple[str, ...], float | Buckets], engine: str, call: str) -> tuple[dict[int, int], float]:
    """Return how many calls are in which bucket, by the exponent of its end in ns, and their sum in ns."""
    value = found["call_seconds", engine, call]
    assert isinstance(value, Buckets)
    assert value.bounds == BOUNDS
    ends = [*EXPONENTS, 99]
    return {ends[i]: count for i, count in enumerate(value.counts) if count}, round(value.sum * 1e9)


def test_it_is_off_unless_asked_for(setup: Setup) -> None:
    assert "kernel_calls" not in create_all(setup)


def test_threads_are_counted_with_their_engine(setup: Setup, files: FakeTracefs) -> None:
    collector = KernelCallsCollector(setup, files)
    engine = setup.engines[0].name
    zero = values(collector)
    assert buckets(zero, engine, "reg_mr") == ({}, 0)
    assert zero["call_timed", "reg_mr"] == 1
    assert ("call_timed", "create_qp") not in zero
    # 122 is a thread of the engine's own process 121, 130 its child, 999 nobody's.
    files.worked[REG] = [
        ({"pid": 122, "ns": 17}, 3, {"ns": 270_000}),
        ({"pid": 130, "ns": 18}, 1, {"ns": 200_000}),
        ({"pid": 999, "ns": 5}, 2, {"ns": 50}),
        ({"pid": 999, "ns": 40}, 1, {"ns": 2**40}),
    ]
    files.failed[REG] = [({"pid": 122, "ret": -errno.ENOMEM}, 2, {}), ({"pid": 122, "ret": -524}, 1, {})]
    files.worked[PIN] = [({"pid": 122, "ns": 16}, 3, {"ns": 99, "bytes": 3 << 20})]
    files.worked[MODIFY] = [({"pid": 122, "state": state, "ns": 14}, 1, {"ns": 9000}) for state in (0, 1, 2, 3, 4, 6)]
    files.returned = {REG: 12, PIN: 3, MODIFY: 6}
    found = values(collector)
    assert buckets(found, engine, "reg_mr") == ({17: 3, 18: 1}, 470_000)
    assert buckets(found, "(other)", "reg_mr") == ({EXPONENTS[0]: 2, 99: 1}, 50 + 2**40)
    assert found["call_failures_total", engine, "reg_mr", "ENOMEM"] == 2
    assert found["call_failures_total", engine, "reg_mr", "-524"] == 1
    assert found["pinned_bytes_total", engine] == 3 << 20
    assert [buckets(found, engine, f"modify_qp_{state}")[0] for state in ("init", "rtr", "rts", "err", "other")] == [
        {14: 1}, {14: 1}, {14: 1}, {14: 1}, {14: 2},
    ]  # fmt: skip
    assert found["calls_unmeasured_total", "reg_mr"] == 2
    assert found["calls_unmeasured_total", "pin"] == 0


def test_only_what_is_new_is_added(setup: Setup, files: FakeTracefs) -> None:
    collector = KernelCallsCollector(setup, files)
    engine = setup.engines[0].name
    row = ({"pid": 122, "ns": 17}, 3, {"ns": 300_000})
    for hits in (3, 3, 5):
        files.worked[REG] = [(row[0], hits, {"ns": hits * 100_000})]
        found = values(collector)
    assert buckets(found, engine, "reg_mr") == ({17: 5}, 500_000)
    # The thread ends: what it did before is still the engine's; another program's thread gets its id.
    (setup.context.procfs / "122/status").unlink()
    files.worked[REG] = [(row[0], 6, {"ns": 600_000})]
    assert buckets(values(collector), engine, "reg_mr") == ({17: 6}, 600_000)
    (setup.context.procfs / "122/status").write_text("Tgid:\t777\n")
    files.worked[REG] = [(row[0], 7, {"ns": 700_000})]
    found = values(collector)
    assert buckets(found, engine, "reg_mr") == ({17: 6}, 600_000)
    assert buckets(found, "(other)", "reg_mr") == ({17: 1}, 100_000)


def test_full_histograms_are_emptied_and_what_that_costs_is_counted(setup: Setup, files: FakeTracefs) -> None:
    collector = KernelCallsCollector(setup, files)
    files.worked[REG] = [({"pid": 1000 + i, "ns": 17}, 1, {"ns": 100_000}) for i in range(FULL)]
    files.returned = {REG: FULL}
    found = values(collector)
    assert len(files.cleared) == 2
    (triggers,) = files.instances.values()
    assert len(triggers) == 4 * len(files.functions)
    assert buckets(found, "(other)", "reg_mr") == ({17: FULL}, FULL * 100_000)
    # 5 calls came after the histograms had been read and before they were emptied.
    files.worked[REG] = [({"pid": 1000, "ns": 17}, 1, {"ns": 100_000})]
    files.returned = {REG: FULL + 6}
    found = values(collector)
    assert buckets(found, "(other)", "reg_mr")[0] == {17: FULL + 1}
    assert found["calls_unmeasured_total", "reg_mr"] == 5


def test_it_begins_again_where_others_took_its_probes_away(setup: Setup, files: FakeTracefs) -> None:
    clock = setup.clock
    assert isinstance(clock, StillClock)
    collector = KernelCallsCollector(setup, files)
    engine = setup.engines[0].name
    files.worked[REG] = [({"pid": 122, "ns": 17}, 3, {"ns": 300_000})]
    values(collector)
    files.instances.clear()
    found = values(collector)
    assert ("call_timed", "reg_mr") not in found
    assert any("cannot be timed: instances/" in line for line in collector.missing)
    assert buckets(found, engine, "reg_mr")[0] == {17: 3}
    files.held.clear()
    values(collector)
    assert files.instances == {}
    clock.now_s += AGAIN_S
    files.worked[REG] = [({"pid": 122, "ns": 17}, 2, {"ns": 200_000})]
    assert buckets(values(collector), engine, "reg_mr") == ({17: 5}, 500_000)
    collector.close()
    assert (files.instances, files.kprobes, files.synthetic) == ({}, [], [])


def test_threads_of_another_process_namespace_are_given_to_no_engine(setup: Setup, files: FakeTracefs) -> None:
    place = setup.context.procfs / "1/ns/pid"
    place.unlink()
    place.symlink_to("pid:[4026532900]")
    files.worked[REG] = [({"pid": 122, "ns": 17}, 3, {"ns": 300_000})]
    collector = KernelCallsCollector(setup, files)
    assert buckets(values(collector), "(other)", "reg_mr")[0] == {17: 3}
    assert any("this one is pid:[4026532900]); with hostPID" in line for line in collector.missing)


def test_a_host_that_cannot_be_traced_says_why(setup: Setup) -> None:
    collector = KernelCallsCollector(setup)
    assert values(collector) == {}
    assert collector.missing == ("calls in the kernel cannot be timed: /sys/kernel/tracing does not exist",)


def test_the_recorder_takes_the_kernels_count_before_any_other(setup: Setup, files: FakeTracefs) -> None:
    collector = KernelCallsCollector(setup, files)
    files.worked[REG] = [({"pid": 122, "ns": 17}, 3, {"ns": 300_000})]
    nodes = {one.name: one.node for one in setup.engines}
    recorded = {
        recorded.name: number(sample.value, recorded) * recorded.scale
        for sample, recorded, _ in chosen(tuple(collector.collect()), nodes, roles_of(setup.engines))
        if "(other)" not in sample.labels
    }
    assert recorded == {"reg.mr_register_us": pytest.approx(300), "reg.mr_registered": 3}
