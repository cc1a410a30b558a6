"""What an end refuses before it asks the adapter, and how the adapter's refusals are told."""

from types import SimpleNamespace

import pytest

from kvdiag.errors import UndeterminedError, UsageError
from kvdiag_probes import verbs
from kvdiag_probes.verbs import EndpointOptions

RXE = SimpleNamespace(device="rxe0")
LIMITS = SimpleNamespace(max_qp_wr=1 << 20, max_qp=1 << 20)


def test_queues_that_do_not_fit_into_memory_are_refused_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbs, "available_memory", lambda: 1 << 30)
    with pytest.raises(
        UsageError, match="--qps 1024 with --queue-depth 8192: their queues need at least 1024 MiB, this"
    ):
        verbs._check_limits(RXE, LIMITS, 8192, EndpointOptions(queue_pairs=1024))  # type: ignore[arg-type]
    verbs._check_limits(RXE, LIMITS, 2048, EndpointOptions(queue_pairs=1024))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("inline", "said"), [(4096, "--inline: rxe0 makes no"), (0, "rxe0: cannot set up a queue pair")]
)
def test_a_queue_pair_refused_for_its_inline_bytes_names_the_flag(inline: int, said: str) -> None:
    error = Exception("Failed to create QP. Errno: 22, Invalid argument")
    told = verbs._resource_error(error, RXE, 4096, 0, EndpointOptions(inline_bytes=inline))  # type: ignore[arg-type]
    assert isinstance(told, UndeterminedError)
    assert said in str(told) and "Invalid argument" in str(told)
