import numpy as np
import pytest

from kvdiag.attribution import diagnose
from kvdiag.derive import overview as module
from kvdiag.derive.counter_curves import MOST_CURVE_POINTS
from kvdiag.derive.overview import FLOOR_S, HAND_OVER, MOST_BINS, MOST_EVENTS, MOST_POINTS, SHARES, TRANSFER, TTFT
from kvdiag.derive.pair_matrix import MOST_NODES
from kvdiag.model.bundle import Bundle, BundleEvent, CounterSeries, Labels, MetricInfo, RequestColumns
from kvdiag.model.diagnosis import AttributedCause, DataSummary, Diagnosis, Period, Verdict
from kvdiag.model.finding import Evidence
from kvdiag.model.missing import Missing
from kvdiag.model.overview import Overview
from tests.attribution.synthetic import World, simulate

START_S = 1_700_000_000.0


def period(start_s: float, end_s: float) -> Period:
    return Period(
        start_s=START_S + start_s, end_s=START_S + end_s, seconds=end_s - start_s, requests=1, mean_s=1, p50_s=1,
        p99_s=1, variance_s2=0,
    )  # fmt: skip


def diagnosis(baseline: Period | None = None, incident: Period | None = None, *causes: AttributedCause) -> Diagnosis:
    named = causes[0].id if causes else None
    return Diagnosis(
        verdict=Verdict(status="cause" if named else "no_change", cause=named, confidence=1, reason=""),
        causes=causes,
        stages=(),
        baseline=baseline,
        incident=incident,
        data=DataSummary(requests=1, sampled=None, granularity="full", split=""),
    )


def cause(name: str, excess_s: float, *evidence: tuple[str, str]) -> AttributedCause:
    lines = tuple(Evidence(name=about, value="", source=source) for about, source in evidence)
    return AttributedCause(
        id=name, share_of_variance=0, share_low=0, share_high=0, excess_mean_s=excess_s, excess_mean_low_s=0,
        excess_mean_high_s=0, excess_p50_s=0, excess_p99_s=0, confidence=1, nodes=(), evidence=lines, action="",
    )  # fmt: skip


def bundle(count: int, prefill: int = 2, decode: int = 2, **more: object) -> Bundle:
    random = np.random.default_rng(1)
    arrival = START_S + np.sort(random.uniform(0, 1000, count))
    arrival[[0, -1]] = START_S, START_S + 1000
    wire = random.lognormal(-3, 1, count)
    numbers = {"arrival_s": arrival, "ttft_s": wire + 0.1, "queue_s": np.full(count, 0.1), "wire_s": wire}
    labels = {
        f"{side}_node": Labels(
            tuple(f"{side[0]}{n}" for n in range(nodes)), random.integers(0, nodes, count).astype(np.int32)
        )
        for side, nodes in (("prefill", prefill), ("decode", decode))
    }
    ids = [f"r{number}" for number in range(count)]
    return Bundle(origin="x", requests=RequestColumns(ids=ids, numbers=numbers, labels=labels), **more)  # type: ignore[arg-type]


def halves() -> Diagnosis:
    return diagnosis(period(0, 500), period(500, 1000))


def test_its_size_does_not_grow_with_the_requests() -> None:
    found = module.overview(bundle(30_000, prefill=40, decode=3), halves())
    assert [len(one.bins) for one in found.timelines] == [MOST_BINS] * len(found.timelines)
    assert all(one.points == () for one in found.timelines)
    assert {len(one.value_s) for one in found.distributions} == {len(SHARES)}
    assert not isinstance(found.pairs, Missing)
    assert len(found.pairs.prefill_nodes) == MOST_NODES and found.pairs.left_out == (40 - MOST_NODES) * 3
    said = "\n".join(found.binned)
    assert f"{MOST_BINS} bins of 4.17 s" in said and f"30000 are more than {MOST_POINTS}" in said
    assert sum(one.requests for one in found.timelines[0].bins) == 30_000


def test_quantiles_are_those_of_each_period() -> None:
    whole = bundle(5000)
    found = module.overview(whole, halves())
    ttft, late = whole.requests.numbers["ttft_s"], whole.requests.numbers["arrival_s"] >= START_S + 500
    before, after = [one for one in found.distributions if one.quantity == TTFT]
    assert (before.period, before.count) == ("baseline", int((~late).sum()))
    assert (after.period, after.count) == ("incident", int(late.sum()))
    assert after.p99_s == pytest.approx(np.quantile(ttft[late], 0.99))
    assert np.interp(0.5, after.share, after.value_s) == pytest.approx(np.median(ttft[late]), rel=1e-3)
    assert list(after.value_s) == sorted(after.value_s)


def test_few_requests_are_drawn_as_they_are() -> None:
    whole = bundle(30)
    found = module.overview(whole, diagnosis(None, period(0, 1000)))
    (one,) = [one for one in found.distributions if one.quantity == TTFT]
    assert one.period == "whole period" and one.value_s == pytest.approx(np.sort(whole.requests.numbers["ttft_s"]))
    assert one.share[-1] == 1.0 and len(found.timelines[0].points) == 30
    assert [span.period for span in found.spans] == ["whole period"]


def test_an_incident_with_two_ends_has_the_baseline_on_both_sides() -> None:
    found = module.overview(bundle(1000), diagnosis(period(0, 1000), period(300, 600)))
    assert [(one.period, one.start_s, one.end_s) for one in found.spans] == [
        ("baseline", 0, 300), ("incident", 300, 600), ("baseline", 600, 1000)
    ]  # fmt: skip
    inside = [one.count for one in found.distributions if one.quantity == TTFT and one.period == "incident"]
    assert 250 < inside[0] < 350


def test_one_request_makes_an_overview() -> None:
    one = bundle(1)
    one.requests.numbers["arrival_s"][:] = START_S
    found = module.overview(one, diagnosis())
    assert [len(timeline.bins) for timeline in found.timelines] == [1] * len(found.timelines)


def test_quantities_keep_absent_apart_from_zero() -> None:
    nan = np.nan
    numbers = {
        "ttft_s": np.array([1.0, 2.0, 3.0]),
        "register_s": np.array([0.5, nan, 0.0]),
        "wire_s": np.array([0.25, nan, 0.0]),
    }
    found = module.quantities_of(RequestColumns(ids=("a", "b", "c"), numbers=numbers, labels={}))
    assert list(found) == [TTFT, HAND_OVER, TRANSFER]
    np.testing.assert_array_equal(found[HAND_OVER], [0.75, nan, 0.0])
    np.testing.assert_array_equal(found[TRANSFER], [0.25, nan, 0.0])
    del numbers["register_s"]
    assert list(module.quantities_of(RequestColumns(ids=("a", "b", "c"), numbers=numbers, labels={}))) == [
        TTFT,
        HAND_OVER,
    ]


def test_zeros_are_drawn_at_the_floor_and_counted() -> None:
    whole = bundle(100)
    whole.requests.numbers["wire_s"][:40] = 0.0
    found = module.overview(whole, diagnosis(None, period(0, 1000)))
    (one,) = [one for one in found.distributions if one.quantity == HAND_OVER]
    assert one.below_floor == 40 and min(one.value_s) == FLOOR_S


def test_pairs_compare_their_own_baseline() -> None:
    whole = bundle(4000)
    found = module.overview(whole, halves()).pairs
    assert not isinstance(found, Missing)
    assert found.quantity == HAND_OVER and len(found.cells) == 4
    labels, wire = whole.requests.labels, whole.requests.numbers["wire_s"]
    late = whole.requests.numbers["arrival_s"] >= START_S + 500
    (cell,) = [one for one in found.cells if (one.prefill, one.decode) == ("p1", "d0")]
    own = (labels["prefill_node"].codes == 1) & (labels["decode_node"].codes == 0)
    assert cell.requests == int((own & late).sum()) and cell.baseline_requests == int((own & ~late).sum())
    assert cell.mean_s == pytest.approx(wire[own & late].mean())
    assert cell.baseline_mean_s == pytest.approx(wire[own & ~late].mean())


def test_rows_without_nodes_have_no_matrix() -> None:
    whole = bundle(10)
    nodes = whole.requests.labels.pop("prefill_node")  # type: ignore[attr-defined]
    found = module.overview(whole, diagnosis()).pairs
    assert isinstance(found, Missing) and "no prefill_node" in str(found)
    whole.requests.labels["prefill_node"] = Labels(nodes.names, np.full(10, -1, dtype=np.int32))  # type: ignore[index]
    found = module.overview(whole, diagnosis()).pairs
    assert isinstance(found, Missing) and "no request names both" in str(found)


def test_nodes_are_in_the_order_people_count() -> None:
    found = module.overview(bundle(2000, prefill=12), diagnosis(None, period(0, 1000))).pairs
    assert not isinstance(found, Missing)
    assert found.prefill_nodes == tuple(f"p{number}" for number in range(12))


def counters(found: Overview) -> dict[str, list[str]]:
    return {chart.metric: [curve.series for curve in chart.curves] for chart in found.counters}


def test_counters_of_the_verdict_are_drawn_the_cited_nodes_first() -> None:
    time = START_S + np.arange(0, 1000, 1.0)
    series = tuple(
        CounterSeries(
            node=f"d{node}", device=None, metric=metric, time_s=time, value=np.cumsum(np.full(1000, node + 1.0))
        )
        for metric in ("nic.cnp", "nic.retransmits", "nic.other")
        for node in range(9)
    )
    gauge = CounterSeries(node="d0", device="mlx5_0", metric="nic.link_gbps", time_s=time, value=np.full(1000, 400.0))
    metrics = {"nic.link_gbps": MetricInfo(kind="gauge", unit="Gb/s")}
    causes = (
        cause("fabric.congestion", 1.0, ("nic.cnp @ d2", "counters, nic.cnp: mean"), ("x", "requests, bytes")),
        cause("fabric.link_degraded", 0.5, ("nic.link_gbps @ d0", "counters, nic.link_gbps: mean")),
        cause("fabric.loss", 0.01, ("nic.retransmits @ d1", "counters, nic.retransmits: mean")),
    )
    whole = bundle(100, series=(*series, gauge), metrics=metrics)
    found = module.overview(whole, diagnosis(period(0, 500), period(500, 1000), *causes))
    assert list(counters(found)) == ["nic.cnp", "nic.link_gbps"] and found.counters_missing is None
    cnp, link = found.counters
    assert "d2" in counters(found)["nic.cnp"] and cnp.left_out == 3 and cnp.counts and not link.counts
    assert len(cnp.curves[0].values) == MOST_CURVE_POINTS
    assert dict(zip(counters(found)["nic.cnp"], (curve.values[5] for curve in cnp.curves), strict=True))["d2"] == 3.0
    assert counters(found)["nic.link_gbps"] == ["d0 mlx5_0"] and set(link.curves[0].values) == {400.0}


def test_without_counters_the_reason_is_told() -> None:
    assert "no counters" in str(module.overview(bundle(10), diagnosis()).counters_missing)
    time = START_S + np.array([0.0, 10.0])
    one = CounterSeries(node="d0", device=None, metric="nic.cnp", time_s=time, value=np.array([1.0, 2.0]))
    found = module.overview(bundle(10, series=(one,)), diagnosis(None, None, cause("fabric.loss", 1.0)))
    assert found.counters == () and "no cause's evidence cites" in str(found.counters_missing)


def test_events_close_together_are_one_mark_and_rare_kinds_come_first() -> None:
    many = [BundleEvent(time_s=START_S + number, node="p0", kind="mr_register") for number in range(1000)]
    many += [BundleEvent(time_s=START_S + 20 * number, node=f"d{number}", kind="qp_error") for number in range(50)]
    rare = BundleEvent(time_s=START_S + 321, node="d1", kind="link_down", detail="carrier lost")
    found = module.overview(bundle(100, events=(*many, rare)), diagnosis())
    assert len(found.events) == MOST_EVENTS
    (down,) = [one for one in found.events if one.kind == "link_down"]
    assert (down.at_s, down.count, down.detail) == (321.0, 1, "carrier lost")
    assert sum(one.kind == "qp_error" for one in found.events) == 50
    assert next(one for one in found.events if one.kind == "mr_register").count == 11
    assert any(line.startswith(f"events: {MOST_EVENTS} marks of") for line in found.binned)


def test_a_real_diagnosis_gives_periods_that_hold_every_request() -> None:
    whole = simulate(World(seed=3, fault="link"))
    found = module.overview(whole, diagnose(whole))
    ttft = [one.count for one in found.distributions if one.quantity == TTFT]
    assert len(ttft) == 2 and sum(ttft) == len(whole.requests)
