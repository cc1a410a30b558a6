import statistics
from itertools import pairwise

import pytest

from kvdiag_probes.demo.blocks import Ring, runs
from kvdiag_probes.demo.prefill import timeline
from kvdiag_probes.demo.transport import STAGING_LEAST_BYTES, STAGING_MOST_BYTES, staging_bytes
from kvdiag_probes.demo.workload import LAYERS, POOL_TOKENS, draw


def test_same_seed_same_workload() -> None:
    assert draw(7, 8, 60) == draw(7, 8, 60)
    assert draw(7, 8, 60) != draw(8, 8, 60)


@pytest.mark.parametrize("seed", range(5))
def test_both_halves_carry_the_same_load(seed: int) -> None:
    requests = draw(seed, 8, 60)
    halves = [r for r in requests if r.offset_s < 30], [r for r in requests if r.offset_s >= 30]
    counts = [len(half) for half in halves]
    tokens = [statistics.mean(r.tokens for r in half) for half in halves]
    assert all(abs(count - 240) <= 10 for count in counts)
    assert abs(tokens[0] / tokens[1] - 1) < 0.06


def test_arrivals_are_bursty_and_lengths_mixed() -> None:
    requests = draw(3, 8, 60)
    gaps = [after.offset_s - before.offset_s for before, after in pairwise(requests)]
    assert min(gaps) >= 0
    assert 0.7 < statistics.stdev(gaps) / statistics.mean(gaps) < 1.2  # exponential: 1
    assert min(r.tokens for r in requests) < 100
    assert max(r.tokens for r in requests) > 1500


def test_one_accelerator_serves_in_order_of_arrival() -> None:
    computed = list(timeline(draw(1, 20, 20), 1_000))
    for before, after in pairwise(computed):
        assert after.start_ns == max(after.arrival_ns, before.end_ns)
    assert all(c.end_ns - c.start_ns == round(c.request.prefill_s * 1e9) for c in computed)
    assert any(c.start_ns > c.arrival_ns for c in computed)


def test_a_tidy_request_is_one_run_per_layer() -> None:
    ring = Ring(scattered=False)
    for tokens in (64, 1600, 1600, 1600, 256):  # wraps once
        assert [count for _, count in runs(ring.take(tokens))] == [tokens] * LAYERS


def test_a_scattered_request_is_hardly_ever_adjacent() -> None:
    slots = Ring(scattered=True, seed=1).take(400)
    assert len(slots) == 400 * LAYERS
    assert len(set(slots.tolist())) == len(slots)
    assert len(runs(slots)) > 0.99 * len(slots)


def test_placements_never_share_a_token() -> None:
    tidy, scattered = Ring(scattered=False), Ring(scattered=True)
    tokens = [{slot % POOL_TOKENS for _ in range(3) for slot in ring.take(1300).tolist()} for ring in (tidy, scattered)]
    assert not tokens[0] & tokens[1]


def test_staging_size_follows_its_cost_within_bounds() -> None:
    assert staging_bytes(1e9) == STAGING_LEAST_BYTES
    assert staging_bytes(0) == STAGING_MOST_BYTES
    assert staging_bytes(0.010) > staging_bytes(0.020) > STAGING_LEAST_BYTES
    assert staging_bytes(0.013) % (LAYERS << 20) == 0


def test_a_surge_multiplies_the_arrivals_of_the_second_half_alone() -> None:
    plain, surging = draw(5, 8, 120), draw(5, 8, 120, surge=3)
    first = [request for request in plain if request.offset_s < 60]
    assert list(surging[: len(first)]) == first
    assert 2.7 < len([r for r in surging if r.offset_s >= 60]) / len([r for r in plain if r.offset_s >= 60]) < 3.3
