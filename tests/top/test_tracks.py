"""Growth over a window: resets, gaps, new series, and quantiles as Prometheus has them."""

import pytest

from kvdiag.sources.exposition import Reading
from kvdiag.top.tracks import Grown
from tests.top.readings import histogram, reading, track

CPU = "kvdiag_exporter_cpu_seconds_total"
SENT = "kvdiag_rdma_port_transmit_bytes_total"
PORT = 'node="a",device="mlx5_0",port="1"'


def sent(time_s: float, value: float | None, cpu_s: float = 1.0) -> Reading:
    lines = [f"{CPU} {cpu_s}"] + ([] if value is None else [f"{SENT}{{{PORT}}} {value}"])
    return reading(time_s, *lines)


def rate_of(*values: tuple[float, float | None]) -> float | None:
    (found,) = [rate for _, rate in track(*(sent(*one) for one in values)).rates(SENT)]
    return found


def test_a_rate_needs_two_readings() -> None:
    assert rate_of((0, 1000)) is None
    assert rate_of((0, 1000), (2, 3000)) == 1000


def test_a_counter_that_fell_grew_by_what_it_shows() -> None:
    assert rate_of((0, 1000), (1, 5000), (2, 300)) == (4000 + 300) / 2


def test_a_series_that_was_away_goes_on_where_it_was() -> None:
    assert rate_of((0, 1000), (1, None), (2, 1600)) == 300


def test_what_a_new_series_counted_before_is_of_no_window() -> None:
    assert rate_of((0, None), (1, 10**12)) == 0
    assert rate_of((0, None), (1, 10**12), (2, 10**12 + 50)) == 25


def test_only_the_window_counts() -> None:
    found = track(*(sent(second, 100 * second) for second in range(31)), sent(31, 100_000), window_s=10)
    assert found.elapsed_s == 10
    ((_, rate),) = found.rates(SENT)
    assert rate == (100_000 - 2100) / 10


def test_a_restart_is_counted_by_the_exporters_own_clock() -> None:
    found = track(sent(0, 10, 5.0), sent(1, 20, 6.0), sent(2, 1, 0.1), sent(3, 2, 0.2))
    assert found.restarts == 1


def test_a_histogram_is_begun_anew_as_a_whole() -> None:
    """One bucket fell; the others rose beyond what they were, which alone would look like growth."""
    first = histogram("kvdiag_ttft_seconds", 'prefill_node="p"', {"0.1": 5, "1": 6, "+Inf": 6}, 2.0)
    then = histogram("kvdiag_ttft_seconds", 'prefill_node="p"', {"0.1": 2, "1": 8, "+Inf": 8}, 5.0)
    ((_, grown),) = track(reading(0, *first), reading(1, *then)).histograms("kvdiag_ttft_seconds")
    assert grown == Grown(((0.1, 2), (1.0, 6), (float("inf"), 0)), 5.0, 8)


@pytest.mark.parametrize(
    ("buckets", "q", "expected"),
    [
        (((0.1, 10.0), (1.0, 0.0), (float("inf"), 0.0)), 0.5, 0.05),
        (((0.1, 5.0), (1.0, 5.0), (float("inf"), 0.0)), 0.75, 0.55),
        (((0.1, 0.0), (1.0, 0.0), (float("inf"), 4.0)), 0.5, 1.0),
        (((0.1, 0.0), (1.0, 0.0), (float("inf"), 0.0)), 0.5, None),
    ],
)
def test_a_quantile_is_prometheus_own(
    buckets: tuple[tuple[float, float], ...], q: float, expected: float | None
) -> None:
    found = Grown(buckets, 1.0, sum(count for _, count in buckets)).quantile(q)
    assert found == (None if expected is None else pytest.approx(expected))


def test_histograms_of_two_exporters_add_up() -> None:
    one = Grown(((0.1, 1.0), (float("inf"), 0.0)), 0.05, 1)
    assert (one + one) == Grown(((0.1, 2.0), (float("inf"), 0.0)), 0.1, 2)
