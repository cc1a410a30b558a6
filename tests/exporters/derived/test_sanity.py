"""What cannot be is left off and told; what only misleads is told and kept."""

import json
from collections.abc import Iterable
from pathlib import Path

import jsonschema
import pytest

from kvdiag.report.json import encode, published_schema
from kvdiag_exporters.catalog import Buckets, Metric, Sample
from kvdiag_exporters.collectors import netdev, nic, nixl
from kvdiag_exporters.derived.base import Derived
from kvdiag_exporters.derived.impossible import rank_gaps
from kvdiag_exporters.derived.sanity import MISSING_RANKS, SUSPECT, SanityDerivation
from kvdiag_exporters.document import build_document
from kvdiag_exporters.engines.metrics import BY_NAME
from kvdiag_exporters.engines.normalise import normalise
from kvdiag_exporters.scraper import Scraper
from kvdiag_exporters.server import HttpServer
from tests.exporters.host import StillClock

FIXTURES = Path(__file__).parents[2] / "fixtures/engines"
PORT = ("n", "mlx5_0", "1")
SENT = next(one for one in nic.METRICS if one.name == "kvdiag_rdma_port_transmit_bytes_total")
USAGE = BY_NAME["kvdiag_engine_kv_usage_ratio"]
TIMES = BY_NAME["kvdiag_engine_transfer_seconds"]
SIZES = BY_NAME["kvdiag_engine_transfer_size_bytes"]


def labels(rank: str = "0", source: str = "vllm") -> tuple[str, ...]:
    return ("n", "e", "decode", source, rank, "nixl", "handle", "measured")


def reasons(found: Derived) -> dict[str, float]:
    return {one.labels[2]: one.value for one in found.samples if one.metric is SUSPECT}  # type: ignore[misc]


def after(*collections: Iterable[Sample], step_s: float = 1.0) -> Derived:
    """Return what the last of several collections, `step_s` apart, leads to."""
    sanity = SanityDerivation()
    for number, samples in enumerate(collections):
        found = sanity.derive(list(samples), 100 + number * step_s)
    return found


def port(sent: float, speed: float = 50e9) -> list[Sample]:
    return [nic.SPEED.sample(speed, *PORT), SENT.sample(sent, *PORT)]


def test_a_port_faster_than_its_link_is_impossible() -> None:
    found = after(port(0), port(80e9))
    assert found.dropped == {(SENT.name, PORT)}
    (finding,) = found.findings
    assert (finding.code, finding.host) == ("EXP001", "n")
    assert finding.summary == "faster than link: 8e+10 B/s over a link of 5e+10 B/s"


@pytest.mark.parametrize("collections", [
    (port(0), port(51e9)),                # within the allowance
    (port(80e9), port(0)),                # the driver was loaded again
    (port(0), port(80e9, speed=0)),       # no rate known
    (port(80e9),),                        # nothing to compare
])  # fmt: skip
def test_what_is_possible_is_passed_on(collections: tuple[list[Sample], ...]) -> None:
    found = after(*collections)
    assert (found.dropped, found.findings) == (set(), [])


def test_no_rate_is_judged_over_a_moment() -> None:
    assert after(port(0), port(80e9), step_s=0.1).dropped == set()


def test_an_interface_is_judged_like_a_port() -> None:
    sent = next(one for one in netdev.METRICS if one.name == "kvdiag_netdev_transmit_bytes_total")
    where = ("n", "", "eth0")
    found = after(*([netdev.SPEED.sample(1e9, *where), sent.sample(value, *where)] for value in (0, 2e9)))
    assert found.dropped == {(sent.name, where)}


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (USAGE.sample(37.0, *labels()), "share_outside_0_to_1"),
        (USAGE.sample(float("nan"), *labels()), "not_a_number"),
        (SENT.sample(-1.0, *PORT), "negative"),
        (TIMES.sample(Buckets((0.1, 1.0), (0, 20, 0), 900.0), *labels()), "sum_outside_buckets"),
        (TIMES.sample(Buckets((0.1, 1.0), (0, 20, 0), 0.5), *labels()), "sum_outside_buckets"),
    ],
)
def test_impossible_alone(sample: Sample, reason: str) -> None:
    found = after([sample])
    assert reasons(found) == {reason: 1}
    assert found.dropped == {(sample.metric.name, sample.labels)}


def test_a_sum_that_is_one_value_ahead_of_its_buckets_is_no_contradiction() -> None:
    assert after([TIMES.sample(Buckets((0.1, 1.0), (0, 20, 0), 21.0), *labels())]).dropped == set()


def test_new_values_above_all_buckets_are_told_and_kept() -> None:
    def slow(ordinary: int, over: int) -> list[Sample]:
        return [TIMES.sample(Buckets((0.1, 5.0), (0, ordinary, over), ordinary * 1.0 + over * 9.0), *labels())]

    stalled = after(slow(100, 0), slow(100, 30))
    assert reasons(stalled) == {"above_all_buckets": 1}
    assert stalled.dropped == set()
    assert stalled.findings[0].summary == "above all buckets: all 30 new values are above 5"
    assert reasons(after(slow(100, 30), slow(150, 60))) == {}
    assert reasons(after(slow(100, 30), slow(100, 33))) == {}


def test_values_that_all_fall_into_a_coarse_first_bucket_are_told() -> None:
    def queue(*bounds: float) -> list[Sample]:
        return [TIMES.sample(Buckets(bounds, (50, *[0] * len(bounds)), 0.1), *labels())]

    assert reasons(after(queue(0.3, 0.5))) == {"below_all_buckets": 1}
    assert reasons(after(queue(0.005, 0.5))) == {}
    sizes = [SIZES.sample(Buckets((2048.0,), (50, 0), 1e4), *labels())]
    assert reasons(after(sizes)) == {}


def test_transfers_faster_than_all_links_of_their_node_are_told() -> None:
    rate = BY_NAME["kvdiag_engine_transfer_rate_bytes_per_second"]

    def told(mean: float, count: int = 20, node: str = "n") -> list[Sample]:
        value = Buckets((1e15,), (count, 0), mean * count)
        return [nic.SPEED.sample(50e9, "n", "mlx5_0", "1"), rate.sample(value, node, *labels()[1:])]

    assert reasons(after(told(60e9))) == {"faster_than_links": 1}
    assert after(told(60e9)).dropped == set()
    assert reasons(after(told(40e9))) == {}
    assert reasons(after(told(60e9, count=3))) == {}
    assert reasons(after(told(60e9, node="other"))) == {}
    assert reasons(after(told(60e9, 1000), told(59e9, 1020))) == {}  # the new ones are slow, whatever came before


def test_transfers_without_bytes_are_no_measurement() -> None:
    found = after(*([SIZES.sample(Buckets((1.0,), (n, 0), 0.0), *labels())] for n in (5, 40)))
    assert reasons(found) == {"zero_with_traffic": 1}
    assert found.dropped == {(SIZES.name, labels())}


@pytest.mark.parametrize(("ranks", "between", "from_zero"), [
    (["0", "1", "3"], (2,), (2,)), (["1"], (), (0,)), (["8", "9", "11"], (10,), (*range(8), 10)), (["0"], (), ()),
    ([], (), ()), (["dp0,tp0"], (), ()), (["99999999"], (), ()),
])  # fmt: skip
def test_gaps_in_ranks(ranks: list[str], between: tuple[int, ...], from_zero: tuple[int, ...]) -> None:
    assert rank_gaps(ranks, from_zero=False) == between
    assert rank_gaps(ranks, from_zero=True) == from_zero


def test_a_metric_without_a_node_is_told_without_one() -> None:
    plain = Metric(name="kvdiag_stage_ratio", kind="gauge", help="X.", unit="ratio", labels=("stage",))
    found = after([plain.sample(7.0, "queue")])
    assert [one.labels for one in found.samples if one.metric is SUSPECT] == [
        ("", "kvdiag_stage_ratio", "share_outside_0_to_1")
    ]
    assert (found.findings[0].host, found.findings[0].subject) == ("", "kvdiag_stage_ratio queue")


def test_missing_and_vanished_ranks_are_told() -> None:
    def ranks(*numbers: str) -> list[Sample]:
        return [TIMES.sample(Buckets((1.0,), (1, 0), 0.5), *labels(rank)) for rank in numbers]

    (sample,) = [one for one in after(ranks("0", "1", "3")).samples if one.metric is MISSING_RANKS]
    assert (sample.labels, sample.value) == (("n", "e", "vllm"), 1)
    gone = after(ranks("0", "1", "2"), ranks("0", "1"))
    assert "missing ranks: ranks 2 of 3" in [one.summary for one in gone.findings]
    assert [one.value for one in after(ranks("0", "1")).samples if one.metric is MISSING_RANKS] == [0]


def test_a_full_ring_is_told_because_its_totals_stand_still() -> None:
    found = after([nixl.RING_FILL.sample(1.0, "n", "e", "decode", "")])
    assert reasons(found) == {"ring_full": 1}
    assert "prometheus_mp" in found.findings[0].action


LYING = FIXTURES / "vllm-decode-prefill-killed.txt"


@pytest.mark.parametrize("path", sorted(set(FIXTURES.glob("*-*.txt")) - {LYING}), ids=lambda path: path.stem)
def test_nothing_recorded_from_a_running_engine_is_impossible(path: Path) -> None:
    samples = normalise(path.read_text(), ("n", "e", "decode")).samples
    found = after(samples, samples)
    assert (found.dropped, found.findings) == (set(), [])


def test_a_sum_that_a_real_engine_counted_below_zero_is_left_off() -> None:
    """A decode engine of vLLM 0.32.0 took 16,000 seconds off its queue time when its prefill engine was killed."""
    samples = normalise(LYING.read_text(), ("n", "e", "decode")).samples
    found = after(samples, samples)
    assert [labels[5] for _, labels in found.dropped] == ["queue_and_kv_wait"]
    (finding,) = found.findings
    assert "sum -15898.2, but its buckets allow 258.2 to 631.6" in finding.summary


class Fixed:
    missing: tuple[str, ...] = ()

    def __init__(self, *samples: Sample) -> None:
        self.samples = samples

    def collect(self) -> Iterable[Sample]:
        return self.samples


class Broken:
    def derive(self, samples: object, monotonic_s: float) -> Derived:
        raise RuntimeError("no")


def test_the_scraper_leaves_off_what_cannot_be_and_says_so() -> None:
    scraper = Scraper(
        {"a": Fixed(USAGE.sample(37.0, *labels()), *port(1))},
        StillClock(),
        derivations={"broken": Broken(), "sanity": SanityDerivation()},
    )
    collection = scraper.collect()
    names = [one.metric.name for one in collection.samples]
    assert USAGE.name not in names
    assert SENT.name in names
    (finding,) = [one for one in collection.samples if one.metric.name == "kvdiag_finding"]
    assert finding.labels[:3] == ("n", "EXP001", "warning")
    assert collection.outcomes["broken"].error == "RuntimeError: no"
    assert collection.outcomes["sanity"].error == ""
    printed = json.loads(encode(build_document(collection)))
    jsonschema.validate(printed, published_schema("kvdiag.exporter-1"))
    assert [one["code"] for one in printed["findings"]] == ["EXP001"]
    server = HttpServer("127.0.0.1", 0, scraper, StillClock().monotonic_s)
    try:
        document = json.loads(server._health()[1])
    finally:
        server.stop()
    assert document["findings"][0]["code"] == "EXP001"
    assert document["findings"][0]["action"]


def test_every_finding_says_what_to_do() -> None:
    metric = Metric(name="kvdiag_x_ratio", kind="gauge", help="X.", unit="ratio", labels=("node",))
    (finding,) = after([metric.sample(2.0, "n")]).findings
    assert finding.action
    assert finding.evidence[0].value == "2"
