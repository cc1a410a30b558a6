"""Limits that are nearly reached, and queue pairs that are in error."""

import pytest

from kvdiag.model.finding import Severity
from kvdiag_exporters.collectors import engine_process, gpu, rdma_limits, rdma_resources
from kvdiag_exporters.derived.headroom import USED, WINDOW_USED, HeadroomDerivation

DEVICE = ("n", "mlx5_0", "qp")


@pytest.mark.parametrize(("taken", "severity"), [
    (899.0, None), (900.0, Severity.WARNING), (1000.0, Severity.CRITICAL), (1001.0, Severity.CRITICAL),
])  # fmt: skip
def test_a_devices_limit(taken: float, severity: Severity | None) -> None:
    samples = [rdma_resources.OBJECTS.sample(taken, *DEVICE), rdma_limits.LIMIT.sample(1000.0, *DEVICE)]
    found = HeadroomDerivation().derive(samples, 0.0)
    assert [(one.metric, one.labels, one.value) for one in found.samples] == [(USED, DEVICE, min(1.0, taken / 1000))]
    assert [one.severity for one in found.findings] == ([] if severity is None else [severity])


def test_without_a_limit_or_a_count_nothing_is_told() -> None:
    for sample in (rdma_resources.OBJECTS.sample(5.0, *DEVICE), rdma_limits.LIMIT.sample(5.0, *DEVICE)):
        found = HeadroomDerivation().derive([sample], 0.0)
        assert (found.samples, found.findings) == ([], [])
    none_allowed = [rdma_resources.OBJECTS.sample(0.0, *DEVICE), rdma_limits.LIMIT.sample(0.0, *DEVICE)]
    assert HeadroomDerivation().derive(none_allowed, 0.0).samples == []


def test_the_window_of_a_gpu_and_pinned_memory() -> None:
    where = ("n", "0000:18:00.0")
    samples = [
        gpu.WINDOW.sample(100.0, *where),
        gpu.WINDOW_USED.sample(95.0, *where),
        engine_process.PINNED_SHARE.sample(0.97, "n", "vllm", "decode"),
    ]
    found = HeadroomDerivation().derive(samples, 0.0)
    assert [(one.metric, one.value) for one in found.samples] == [(WINDOW_USED, 0.95)]
    assert [(one.code, one.subject) for one in found.findings] == [
        ("EXP003", "0000:18:00.0"), ("EXP003", "vllm decode"),
    ]  # fmt: skip
    assert "memlock" in found.findings[1].action


def test_queue_pairs_in_error_are_told_by_device_and_engine() -> None:
    def pairs(count: float, engine: str, kind: str, state: str) -> object:
        return rdma_resources.QUEUE_PAIRS.sample(count, "n", "mlx5_0", engine, kind, state)

    samples = [
        pairs(2, "a", "RC", "ERR"),
        pairs(1, "a", "UD", "ERR"),
        pairs(9, "a", "RC", "RTS"),
        pairs(0, "b", "RC", "ERR"),
    ]
    found = HeadroomDerivation().derive(samples, 0.0)  # type: ignore[arg-type]
    assert [(one.code, one.subject, one.summary) for one in found.findings] == [
        ("EXP004", "mlx5_0 a", "3 queue pair(s) in state ERR")
    ]
