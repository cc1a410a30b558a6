import numpy as np
import pytest

from kvdiag.attribution.batching import Batching, batching
from kvdiag.attribution.frame import standing_frame
from kvdiag.derive.stages import stage_matrix
from kvdiag.model.bundle import Bundle, Labels, RequestColumns
from kvdiag.model.missing import Missing


def served(linger_s: float, count: int = 3000, sampled: float = 1.0) -> Bundle:
    """Return one prefill node that takes what waits, after having waited `linger_s` for more."""
    random = np.random.default_rng(5)
    arrival = np.cumsum(random.exponential(0.2, count))
    tokens = random.integers(100, 1000, count).astype(float)
    columns = {name: np.zeros(count) for name in ("queue_s", "prefill_s", "batch_tokens", "batch_requests")}
    free, first = 0.0, 0
    while first < count:
        begin = max(free, arrival[first]) + linger_s
        rows = np.arange(first, max(first + 1, int(np.searchsorted(arrival, begin))))
        seconds = 0.01 + tokens[rows].sum() * 2e-4
        columns["queue_s"][rows] = begin - arrival[rows]
        columns["prefill_s"][rows] = seconds
        columns["batch_tokens"][rows], columns["batch_requests"][rows] = tokens[rows].sum(), len(rows)
        free, first = begin + seconds, int(rows[-1]) + 1
    keep = random.random(count) < sampled
    ttft = columns["queue_s"] + columns["prefill_s"]
    numbers = {"arrival_s": arrival, "ttft_s": ttft, "uncached_tokens": tokens, **columns}
    return Bundle(
        origin="one worker",
        requests=RequestColumns(
            ids=[str(row) for row in np.flatnonzero(keep)],
            numbers={name: values[keep] for name, values in numbers.items()},
            labels={"prefill_node": Labels(("p0",), np.zeros(int(keep.sum()), dtype=np.int32))},
        ),
        sampling=sampled,
    )


def of(bundle: Bundle) -> Batching | Missing:
    return batching(standing_frame(bundle, stage_matrix(bundle.requests)))


@pytest.mark.parametrize("sampled", [1.0, 0.1])
def test_a_worker_that_takes_what_waits_does_not_linger(sampled: float) -> None:
    found = of(served(0.0, sampled=sampled))
    assert isinstance(found, Batching)
    assert found.seen == pytest.approx(found.usual, rel=0.12)
    assert not found.lingers


@pytest.mark.parametrize("sampled", [1.0, 0.1])
def test_batches_that_were_waited_for_are_larger(sampled: float) -> None:
    found = of(served(0.5, sampled=sampled))
    assert isinstance(found, Batching)
    assert found.lingers
    assert found.seen > 1.3 * found.usual
    assert (found.extra >= 0).all()
    assert found.load.ratio == pytest.approx(found.seen / found.usual)


def test_without_batches_nothing_is_said() -> None:
    bundle = served(0.5)
    del bundle.requests.numbers["batch_requests"]  # type: ignore[attr-defined]
    assert isinstance(of(bundle), Missing)
