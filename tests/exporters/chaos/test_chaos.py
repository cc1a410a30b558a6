"""A short run of the exporter under faults, and its oracle: it complains of what is wrong and of nothing else."""

from pathlib import Path

import pytest

from tests.exporters.chaos.harness import Harness
from tests.exporters.chaos.oracle import Oracle
from tests.exporters.chaos.truth import Factor, Troubles
from tests.exporters.chaos.world import World

SENT = 'kvdiag_rdma_port_transmit_bytes_total{device="x",node="n",port="1"}'
UP = 'kvdiag_rdma_port_up{device="x",node="n",port="1"}'


@pytest.mark.component
def test_under_faults_nothing_is_wrong_lost_or_hidden(tmp_path: Path) -> None:
    result = Harness(tmp_path, seed=7).run(seconds=8, most_at_once=3)
    assert result.complaints == {}
    assert result.scrapes > 20
    assert sum(result.drawn.values()) > 5


@pytest.fixture
def oracle(tmp_path: Path) -> Oracle:
    found = Oracle(World(tmp_path, 0.1), age_s=1.0)
    found.learn({SENT: 100.0, UP: 1.0}, {SENT: 300.0, UP: 1.0}, 3)
    return found


def check(oracle: Oracle, *lines: str, start_s: float = 10.0) -> list[str]:
    oracle.complaints.clear()
    oracle.check("\n".join(lines), start_s, start_s + 0.1, "here")
    return list(oracle.complaints)


def test_the_oracle_knows_what_is_true(oracle: Oracle) -> None:
    assert check(oracle, f"{SENT} 100", f"{UP} 1") == []
    assert check(oracle, f"{SENT} 100.5", f"{UP} 1") == ["wrong kvdiag_rdma_port_transmit_bytes_total"]
    assert check(oracle, f"{SENT} 100", f"{UP} 0") == ["wrong kvdiag_rdma_port_up"]
    assert check(oracle, f"{SENT} 100") == ["hidden kvdiag_rdma_port_up"]
    assert check(oracle, f"{SENT} 100", f"{UP} 1", f"{UP[:-2]}2" + '"} 1') == ["unexpected host"]
    assert check(oracle, f"{SENT} 100", f"{UP} 1", f"{UP} 1") == ["exposition"]
    assert check(oracle, f"{SENT} 100", f"{UP} 1", "<html>") == ["exposition"]


def test_in_trouble_a_series_may_be_missing_and_never_wrong(oracle: Oracle) -> None:
    number = oracle.world.troubles.begin("host")
    now_s = float(oracle.world.troubles._times["host"][0][0])
    assert check(oracle, start_s=now_s) == []
    assert check(oracle, f"{SENT} 99", start_s=now_s) == ["wrong kvdiag_rdma_port_transmit_bytes_total"]
    oracle.world.troubles.end("host", number)
    assert len(check(oracle, start_s=now_s + 10)) == 2


def test_what_the_exporter_counts_itself_never_falls(oracle: Oracle) -> None:
    healthy = (f"{SENT} 100", f"{UP} 1")
    assert check(oracle, *healthy, "kvdiag_records_read_total 5") == []
    assert check(oracle, *healthy, "kvdiag_records_read_total 4", start_s=20.0) == ["falls kvdiag_records_read_total"]
    assert check(oracle, *healthy, "kvdiag_rdma_port_utilisation_ratio 1.5", start_s=30.0) == [
        "no share kvdiag_rdma_port_utilisation_ratio"
    ]


def test_a_factor_is_what_a_reader_can_have_seen() -> None:
    factor = Factor()
    assert factor.between(0.0, 1.0) == (1, 1)
    factor.begin(5)
    assert factor.between(0.0, float("inf")) == (1, 5)
    begun_s = factor._values[-1][0]
    assert factor.between(begun_s + 10, begun_s + 11) == (1, 5)  # still being written
    factor.end()
    assert factor.between(factor._written[-1] + 1, factor._written[-1] + 2) == (5, 5)


def test_troubles_that_overlap_are_one() -> None:
    troubles = Troubles()
    first, second = troubles.begin("a"), troubles.begin("a")
    troubles.end("a", first)
    assert troubles.any("a", 1e12, 1e12)
    troubles.end("a", second, settle_s=5.0)
    over_s = troubles._times["a"][second][1]
    assert troubles.any("a", over_s - 1, over_s)
    assert not troubles.any("a", over_s + 0.1, over_s + 1)
    assert not troubles.any("b", 0.0, 1e12)
