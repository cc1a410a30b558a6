import numpy as np
import pytest

from kvdiag.attribution import diagnose
from kvdiag.derive.windows import window_bundle
from kvdiag.errors import UndeterminedError
from kvdiag.model.windows import HistogramSeries
from tests.attribution.cluster import Cluster
from tests.attribution.histograms import windows_of
from tests.attribution.recording import Recorder

TIMES = np.array([1000.0, 1010.0, 1020.0, 1030.0, 1040.0])


def _histogram(
    quantity: str, means: list[float], prefill: str | None = None, decode: str | None = None, times: np.ndarray = TIMES
) -> HistogramSeries:
    """Ten requests in each of four windows, with these means."""
    count = np.linspace(0.0, 10.0 * (len(times) - 1), len(times))
    total = np.concatenate([[0.0], np.cumsum(10 * np.array(means))])
    return HistogramSeries(
        quantity=quantity, prefill_node=prefill, decode_node=decode, time_s=times, total=total, count=count
    )


def test_a_row_is_the_mean_of_a_pair_and_window() -> None:
    bundle = window_bundle(
        "x",
        [
            _histogram("queue_s", [0.1, 0.2, 0.3, 0.4], prefill="p"),
            _histogram("prefill_s", [0.5] * 4, prefill="p"),
            _histogram("kv_wait_s", [0.05] * 4, decode="d0"),
            _histogram("kv_wait_s", [0.07] * 4, decode="d1"),
            _histogram("wire_s", [0.02] * 4, decode="d0"),
            _histogram("wire_s", [0.03] * 4, decode="d1"),
            _histogram("bytes", [1e6] * 4, decode="d0"),
        ],
    )
    numbers = bundle.requests.numbers
    assert bundle.window_s == 10
    assert len(bundle.requests) == 8
    first = bundle.requests.labels["decode_node"].codes == 0
    assert numbers["queue_s"][first] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert numbers["pre_transfer_s"][first] == pytest.approx([0.03] * 4)
    assert numbers["ttft_s"][first] == pytest.approx([0.65, 0.75, 0.85, 0.95])
    assert np.isnan(numbers["bytes"][~first]).all()
    assert "kv_wait_s" not in numbers
    arrivals = next(one for one in bundle.series if one.metric == "engine.arrivals")
    assert arrivals.value[-1] - arrivals.value[0] == 40
    assert bundle.sampling == pytest.approx(8 / 40)


def test_a_restart_of_an_engine_is_no_negative_mean() -> None:
    total = np.array([100.0, 101.0, 0.5, 1.5, 2.5])
    count = np.array([1000.0, 1010.0, 5.0, 15.0, 25.0])
    one = HistogramSeries(
        quantity="queue_s", prefill_node="p", decode_node=None, time_s=TIMES, total=total, count=count
    )
    bundle = window_bundle("x", [one])
    assert bundle.requests.numbers["queue_s"] == pytest.approx([0.1] * 4)


def test_a_window_without_requests_has_no_row() -> None:
    one = _histogram("queue_s", [0.1, 0.1, 0.1, 0.1], prefill="p")
    idle = HistogramSeries(
        quantity="queue_s",
        prefill_node="p",
        decode_node=None,
        time_s=TIMES,
        total=one.total[[0, 1, 1, 2, 3]],
        count=one.count[[0, 1, 1, 2, 3]],
    )
    assert len(window_bundle("x", [idle]).requests) == 3


def test_histograms_of_no_stage_are_nothing_to_examine() -> None:
    with pytest.raises(UndeterminedError, match="no histogram of a stage of TTFT"):
        window_bundle("x", [_histogram("bytes", [1.0] * 4, decode="d")])


def test_few_windows_abstain() -> None:
    verdict = diagnose(window_bundle("x", [_histogram("queue_s", [0.1, 0.2, 0.1, 0.2], prefill="p")])).verdict
    assert verdict.status == "abstain"
    assert "too few windows" in verdict.reason


@pytest.mark.parametrize(
    ("cause", "size"),
    [("fabric.loss", 4.0), ("registration.on_path", 4.0), ("layout.fragmented", 1.0), ("workload.prompt_length", 0.5)],
)
def test_a_fault_is_named_from_histograms_alone(cause: str, size: float) -> None:
    diagnosis = diagnose(windows_of(Cluster(seed=11, faults={cause: size}, rate=10), Recorder(clocks_s=0.0)))
    assert diagnosis.causes[0].id == cause
    assert diagnosis.verdict.cause == cause
    assert any("histograms only" in note for note in diagnosis.data.notes)
    assert abs(sum(one.share_of_variance for one in diagnosis.stages) - 1) < 1e-9


def test_a_healthy_cluster_blames_no_machine_from_histograms_alone() -> None:
    for seed in range(4):
        drift = (1.0, 1.0) if seed % 2 else (1.12, 0.9)
        bundle = windows_of(Cluster(seed=seed, drift=drift), Recorder(clocks_s=0.0, decoys=2))
        cause = diagnose(bundle).verdict.cause or "workload."
        assert cause.split(".")[0] in ("workload", "schedule", "cache")


def test_misses_are_not_taken_for_larger_batches_from_histograms_alone() -> None:
    bundle = windows_of(Cluster(seed=11, faults={"cache.prefix_miss": 0.35}, rate=10), Recorder(clocks_s=0.0))
    diagnosis = diagnose(bundle)
    # Lost prefixes and lost histories cannot be told apart without turns: both are listed, and neither is named.
    assert [cause.id for cause in diagnosis.causes[:2]] == ["cache.prefix_miss", "cache.multi_turn_recompute"]
    assert diagnosis.verdict.cause is None
