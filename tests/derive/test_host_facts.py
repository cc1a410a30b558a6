"""What is derived of one host: memory limits, ways to GPU memory, PCI rates, lines of the kernel log."""

from pathlib import Path

import pytest

from kvdiag.checks.fab014_traffic_class import priority
from kvdiag.derive.gpu_memory import has_dmabuf, has_open_modules, peermem
from kvdiag.derive.gpu_pairs import below_shared, none_switched, pairs
from kvdiag.derive.kernel_lines import matching
from kvdiag.derive.memlock import is_exempt
from kvdiag.derive.pci_rate import rate_gbps
from kvdiag.model.kernel import Kernel
from kvdiag.model.kernel_log import KernelLog
from kvdiag.model.missing import Missing
from kvdiag.model.serving import ServingProcess
from kvdiag.model.snapshot import Snapshot
from kvdiag.sources.base import Context, collect
from tests.trees import HOSTS

GONE = Missing("gone")
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06"


def kernel(release: str | Missing = "6.8.0", version: str | Missing = OPEN, modules: tuple[str, ...] = ()) -> Kernel:
    return Kernel(
        release=release,
        modules=modules,
        memory_bytes=GONE,
        nvidia_version=version,
        huge_pages=GONE,
        huge_page_bytes=GONE,
    )


def process(cap_eff: int | Missing, initial: bool | Missing) -> ServingProcess:
    return ServingProcess(
        pid=1,
        engine="vllm",
        command=(),
        uid=0,
        groups=(),
        memlock=65536,
        cap_eff=cap_eff,
        initial_user_namespace=initial,
        cgroup=GONE,
        network=GONE,
        variables=(),
    )


def test_dmabuf_needs_open_modules_and_a_new_kernel() -> None:
    assert has_dmabuf(kernel()) is True
    assert has_dmabuf(kernel("5.12.0-1")) is True
    assert has_dmabuf(kernel("5.4.0-200-generic")) is False
    assert has_dmabuf(kernel("4.18.0")) is False
    assert has_dmabuf(kernel("unknown")) == Missing("kernel release: unknown")
    assert has_dmabuf(kernel(version="NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01")) is False
    assert has_dmabuf(kernel(version=GONE)) == GONE
    assert has_open_modules(kernel()) is True


def test_either_module_serves_peer_memory() -> None:
    assert peermem(kernel(modules=("ib_core", "nv_peer_mem"))) == "nv_peer_mem"
    assert peermem(kernel(modules=("ib_core",))) is None


@pytest.mark.parametrize(
    ("cap_eff", "initial", "expected"),
    [(1 << 14, True, True), (1 << 14, False, False), (0, True, False), (0, GONE, False), (1 << 14, GONE, GONE)],
)
def test_the_capability_counts_in_the_initial_user_namespace(
    cap_eff: int, initial: bool | Missing, expected: bool | Missing
) -> None:
    assert is_exempt(process(cap_eff, initial)) == expected
    assert is_exempt(process(GONE, initial)) == GONE


def test_rates_of_pci_links_after_their_line_code() -> None:
    assert rate_gbps(5.0, 8) == 32.0
    assert rate_gbps(16.0, 16) == pytest.approx(252.06, abs=0.01)
    assert rate_gbps(32.0, 16) == pytest.approx(504.12, abs=0.01)
    assert rate_gbps(64.0, 16) == 968.0


def test_traffic_classes_map_to_priorities_by_dscp() -> None:
    assert [priority(traffic_class) for traffic_class in (0, 48, 96, 104, 106, 255)] == [0, 1, 3, 3, 3, 7]


def test_lines_carry_their_time_where_they_have_one() -> None:
    log = KernelLog(lines=("[   12.5] mlx5_core: a 1", "[Sat Nov 29] mlx5_core: a 2", "other"), origin="dmesg")
    found = matching(Snapshot(host="a", time_s=0.0, parts={KernelLog: log}), r"a (\d)")
    assert not isinstance(found, Missing)
    assert [(line.match[1], line.seconds) for line in found] == [("1", 12.5), ("2", None)]
    assert isinstance(matching(Snapshot(host="a", time_s=0.0), "a"), Missing)


def test_pairs_on_one_switch_and_the_bridges_between_them() -> None:
    found = pairs(collect(Context(root=Path(HOSTS / "mi300x-bnxt"), live=False)))
    assert not isinstance(found, Missing)
    switched = [pair for pair in found if pair.is_switched]
    assert (len(found), len(switched)) == (64, 8)
    assert below_shared(switched[0]) == ("0000:06:01.0", "0000:06:00.0")
    assert none_switched(()) == "no pair of a GPU and an RDMA card with an ACTIVE port"
    apart = pairs(collect(Context(root=Path(HOSTS / "roce-bond"), live=False)))
    assert not isinstance(apart, Missing)
    assert not any(pair.is_switched for pair in apart)
    assert none_switched(apart) == "none of 4 pair(s) of GPU and RDMA card shares a PCI switch"
