"""kvdiag's bandwidth against perftest's, in the same machines and by turns."""

import pytest

from benchmarks import perftest_compare as benchmark
from tests.lab.topology import Wire


@pytest.mark.lab
@pytest.mark.timeout(900)
def test_bandwidth_is_at_least_nine_tenths_of_perftest(lab_pair: Wire) -> None:
    rows = benchmark.all_rows()
    benchmark.compare(lab_pair, rows, rounds=3)
    # The machines share the host's processors with whatever else runs: where that hit one program's every round,
    # both get as many rounds more.
    slow = [row for row in rows if row.ratio < benchmark.TARGET]
    if slow:
        benchmark.compare(lab_pair, slow, rounds=6)
    assert all(row.ratio >= benchmark.TARGET for row in rows), "\n".join(benchmark.table(rows))
