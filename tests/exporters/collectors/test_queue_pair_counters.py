"""Counters of single queue pairs, from messages built after the kernel's header: no driver here has any."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from kvdiag.model.missing import Missing
from kvdiag.sources._nldev import Attribute, Command, u32
from kvdiag.sources.base import Context
from kvdiag.sources.rdma_statistic import read_modes, read_queue_pair_counters
from kvdiag_exporters.collectors.base import Engine, Setup, create_all
from kvdiag_exporters.collectors.queue_pair_counters import QueuePairCountersCollector
from tests.exporters.host import write_host


def attribute(kind: int, value: bytes) -> bytes:
    length = 4 + len(value)
    return struct.pack("=HH", length, kind) + value + bytes(-length % 4)


def text(kind: Attribute, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def counter(number: int, pid: int | None, values: dict[str, int], pairs: int = 1, type_: int | None = 2) -> bytes:
    """Return an entry as fill_res_counter_entry of nldev.c writes it."""
    entry = u32(Attribute.PORT_INDEX, 1) + u32(Attribute.STAT_COUNTER_ID, number) + u32(Attribute.STAT_MODE, 1)
    if type_ is not None:
        entry += attribute(Attribute.RES_TYPE, bytes([type_]))
    if pid is not None:
        entry += u32(Attribute.RES_PID, pid) if pid else text(Attribute.RES_KERN_NAME, "nvme_rdma")
    entry += attribute(Attribute.RES_QP, b"".join(attribute(20, u32(Attribute.RES_LQPN, one)) for one in range(pairs)))
    rows = (
        attribute(
            Attribute.STAT_HWCOUNTER_ENTRY,
            text(Attribute.STAT_HWCOUNTER_ENTRY_NAME, name)
            + attribute(Attribute.STAT_HWCOUNTER_ENTRY_VALUE, struct.pack("=Q", value)),
        )
        for name, value in values.items()
    )
    return attribute(Attribute.STAT_COUNTER_ENTRY, entry + attribute(Attribute.STAT_HWCOUNTERS, b"".join(rows)))


class Kernel:
    """A device with one port; `counters` are what its driver counts, `mode` how it binds."""

    def __init__(self) -> None:
        self.counters: list[bytes] = []
        self.mode: int | OSError = 1

    def ask(self, command: Command, attributes: bytes = b"", *, dump: bool = True) -> list[bytes]:
        head = u32(Attribute.DEV_INDEX, 0) + text(Attribute.DEV_NAME, "mlx5_0") + u32(Attribute.PORT_INDEX, 1)
        if command is Command.GET:
            return [head]
        assert command is Command.STAT_GET
        assert u32(Attribute.STAT_RES, Attribute.RES_QP) in attributes
        if dump:
            return [head + attribute(Attribute.STAT_COUNTER, b"".join(self.counters))] if self.counters else []
        if isinstance(self.mode, OSError):
            raise self.mode
        return [head + u32(Attribute.STAT_MODE, self.mode)]


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def setup(tmp_path: Path, kernel: Kernel) -> Setup:
    return replace(write_host(tmp_path), netlink=kernel, queue_pair_counters=True)


def found(collector: QueuePairCountersCollector) -> dict[tuple[str, ...], object]:
    return {(one.metric.name.removeprefix("kvdiag_rdma_"), *one.labels[3:]): one.value for one in collector.collect()}


def test_a_counter_is_read_with_what_binds_its_queue_pairs(kernel: Kernel, tmp_path: Path) -> None:
    kernel.counters = [counter(7, 0, {"out_of_sequence": 3}, pairs=2), counter(8, None, {}, type_=None)]
    first, second = read_queue_pair_counters(kernel, tmp_path)
    assert (first.device, first.port, first.id, first.type, first.queue_pairs) == ("mlx5_0", 1, 7, "RC", 2)
    assert first.values == {"out_of_sequence": 3}
    assert second.type == Missing("not bound by type")
    assert second.pid == Missing("not bound by process")
    assert read_modes(kernel) == {("mlx5_0", 1): "auto"}


def test_they_are_summed_by_engine_and_never_fall(setup: Setup, kernel: Kernel) -> None:
    collector = QueuePairCountersCollector(setup)
    kernel.counters = [
        counter(1, 121, {"out_of_sequence": 3}, pairs=4),
        counter(2, 130, {"out_of_sequence": 2}),  # a child of the engine
        counter(3, 0, {"out_of_sequence": 9}),
        counter(4, 4242, {"out_of_sequence": 1}),
    ]
    assert found(collector) == {
        ("counted_queue_pairs", "demo", "RC"): 5,
        ("counted_queue_pairs", "(kernel)", "RC"): 1,
        ("counted_queue_pairs", "(other)", "RC"): 1,
        ("queue_pair_counters_total", "demo", "RC", "out_of_sequence"): 5,
        ("queue_pair_counters_total", "(kernel)", "RC", "out_of_sequence"): 9,
        ("queue_pair_counters_total", "(other)", "RC", "out_of_sequence"): 1,
    }
    assert collector.missing == ()
    kernel.counters = [counter(1, 121, {"out_of_sequence": 5}, pairs=4)]
    after = found(collector)
    assert after["queue_pair_counters_total", "demo", "RC", "out_of_sequence"] == 7
    assert ("counted_queue_pairs", "(other)", "RC") not in after
    kernel.counters = [counter(1, 121, {"out_of_sequence": 1}), counter(2, 130, {"out_of_sequence": 1})]
    assert found(collector)["queue_pair_counters_total", "demo", "RC", "out_of_sequence"] == 9  # both begun anew


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        (0, "nobody asked the kernel to count them (rdma statistic qp set link mlx5_0/1 auto type,pid on"),
        (OSError(95, "Operation not supported"), "mlx5_0/1: the kernel does not tell"),
    ],
)
def test_where_there_are_none_it_says_why(setup: Setup, kernel: Kernel, mode: int | OSError, why: str) -> None:
    kernel.mode = mode
    collector = QueuePairCountersCollector(setup)
    assert found(collector) == {}
    (missing,) = collector.missing
    assert "not observable here on their own" in missing
    assert why in missing


def test_a_tree_has_no_kernel_to_ask_and_only_who_asks_for_them_gets_them(tmp_path: Path, kernel: Kernel) -> None:
    setup = Setup(node="h", engines=(Engine(name="e", node="h"),), context=Context(root=tmp_path, live=False))
    assert "queue_pair_counters" not in create_all(setup)
    collector = create_all(replace(setup, queue_pair_counters=True))["queue_pair_counters"]
    assert list(collector.collect()) == []
    assert collector.missing == ("RDMA netlink answers for the running kernel only",)
