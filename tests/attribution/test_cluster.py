"""Diagnoses of simulated clusters with several nodes, of which the truth is known by simulating without the fault."""

from dataclasses import replace

import numpy as np
import pytest

from kvdiag.attribution import diagnose
from tests.attribution.cluster import UNKNOWN, Cluster
from tests.attribution.recording import Recorder, record

SIZES = {
    "cache.prefix_miss": 0.35,
    "connection.exhaustion": 0.6,
    "connection.setup": 1.5,
    "fabric.congestion": 0.5,
    "fabric.link_degraded": 1.5,
    "fabric.loss": 4.0,
    "fabric.tcp_fallback": 0.8,
    "layout.fragmented": 1.0,
    "registration.cache_miss": 4.0,
    "registration.on_path": 4.0,
    "schedule.decode_admission": 0.5,
    "schedule.prefill_queue": 0.5,
    "schedule.serial_pull": 0.9,
    "workload.prefill_batch": 0.4,
    "workload.prompt_length": 0.5,
}
DEGRADED = {
    "as recorded": Recorder(),
    "one in five, typical stages": Recorder(sampling=0.2, granularity="typical", decoys=2),
    "coarse stages": Recorder(granularity="coarse"),
}


@pytest.mark.parametrize("recorder", DEGRADED.values(), ids=list(DEGRADED))
@pytest.mark.parametrize("cause", SIZES)
def test_a_fault_of_a_cluster_is_first(cause: str, recorder: Recorder) -> None:
    bundle, truth = record(Cluster(seed=11, faults={cause: SIZES[cause]}, rate=10), recorder)
    diagnosis = diagnose(bundle)
    assert truth.impact > 0.1
    assert cause in [one.id for one in diagnosis.causes[:2]]
    assert diagnosis.verdict.cause in (cause, None)
    first = next(one for one in diagnosis.causes if one.id == cause)
    assert 0.4 < first.excess_mean_s / truth.excess_mean_s < 1.6


def test_a_healthy_cluster_never_blames_the_machines() -> None:
    for seed in range(24):
        drift = (1.0, 1.0) if seed % 2 else (1.12, 0.9)
        recorder = list(DEGRADED.values())[seed % 3]
        bundle, _ = record(Cluster(seed=seed, drift=drift), recorder)
        assert (diagnose(bundle).verdict.cause or "workload.").split(".")[0] in ("workload", "schedule", "cache")


def test_a_cause_outside_the_list_is_not_forced_into_it() -> None:
    named = [diagnose(record(Cluster(seed=seed, faults={UNKNOWN: 0.8}))[0]).verdict.cause for seed in range(10)]
    assert named.count(None) >= 8
    assert all(cause is None or cause.startswith(("workload", "schedule.prefill")) for cause in named)


@pytest.mark.parametrize(
    "pair",
    [
        ("fabric.loss", "registration.on_path"),
        ("layout.fragmented", "schedule.decode_admission"),
        ("fabric.loss", "workload.prompt_length"),
        ("connection.setup", "fabric.tcp_fallback"),
    ],
)
def test_two_faults_are_both_among_the_first_three(pair: tuple[str, str]) -> None:
    bundle, _ = record(Cluster(seed=21, faults={cause: SIZES[cause] for cause in pair}, rate=10))
    assert set(pair) <= {one.id for one in diagnose(bundle).causes[:3]}


def test_a_missing_counter_is_told_and_never_replaced_by_a_guess() -> None:
    recorder = Recorder(missing=("nic.retransmits", "nic.out_of_sequence", "nic.ack_timeouts"), granularity="typical")
    bundle, _ = record(Cluster(seed=11, faults={"fabric.loss": 4.0}, rate=10), recorder)
    diagnosis = diagnose(bundle)
    assert diagnosis.verdict.cause is None
    assert any("nic.retransmits" in line for line in diagnosis.data.missing)
    assert any("nic.retransmits" in line for line in diagnosis.verdict.collect_next)


def test_a_chronic_fault_of_a_cluster_is_first() -> None:
    for cause in ("fabric.loss", "fabric.tcp_fallback", "registration.on_path", "connection.setup"):
        bundle, _ = record(Cluster(seed=11, faults={cause: SIZES[cause]}, rate=10), Recorder(whole=True))
        diagnosis = diagnose(replace(bundle, incident_start_s=None))
        assert diagnosis.causes[0].id == cause


def test_the_same_world_is_simulated_alike() -> None:
    one, other = (record(Cluster(seed=3, faults={"fabric.loss": 1.0}))[0] for _ in range(2))
    assert np.array_equal(one.requests.numbers["ttft_s"], other.requests.numbers["ttft_s"])


@pytest.mark.parametrize("cause", ["cache.prefix_miss", "workload.prompt_length"])
def test_batches_of_longer_work_are_no_larger_batches(cause: str) -> None:
    """What others in the batch compute grows with the work of each: it is booked to that, not to batching."""
    bundle, truth = record(Cluster(seed=11, faults={cause: SIZES[cause]}, rate=10), Recorder(decoys=0))
    excess = {one.id: one.excess_mean_s for one in diagnose(bundle).causes}
    assert abs(excess["workload.prefill_batch"]) < 0.08 * truth.excess_mean_s
    assert excess[cause] == pytest.approx(truth.excess_mean_s, rel=0.15)
