"""Recordings of a real vLLM pair: a throttled link is named, overload and nothing are not blamed on the network."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kvdiag.attribution import diagnose
from kvdiag.model.bundle import Bundle
from kvdiag.model.diagnosis import Diagnosis
from kvdiag.sources.bundle import read_bundle

PAIR = Path(__file__).parents[1] / "fixtures/vllm-pair"
ADDED_S = 0.417
"""By how much TTFT grew as the client saw it."""
MACHINE = ("fabric.", "registration.", "connection.", "layout.")


@cache
def said(kind: str) -> Diagnosis:
    return diagnose(read_bundle(PAIR / kind))


def test_a_link_that_is_throttled_half_way_is_named_with_its_nodes_and_its_size() -> None:
    found = said("link")
    first = found.causes[0]
    assert (found.verdict.cause, first.id, first.nodes) == (
        "fabric.link_degraded", "fabric.link_degraded", ("decode-0", "prefill-0"),
    )  # fmt: skip
    assert first.excess_mean_s == pytest.approx(ADDED_S, rel=0.3)


def test_a_link_that_is_throttled_all_the_time_is_named_against_the_speed_it_reports() -> None:
    found = said("chronic")
    assert found.baseline is None
    assert (found.verdict.cause, found.causes[0].nodes) == ("fabric.link_degraded", ("decode-0", "prefill-0"))
    assert any("on a link that reports 1,250 MB/s" in line.value for line in found.causes[0].evidence)


@pytest.mark.parametrize("kind", ["none", "prefill", "overload", "prompts"])
def test_what_the_network_did_not_do_is_not_blamed_on_it(kind: str) -> None:
    verdict = said(kind).verdict
    assert not str(verdict.cause).startswith(MACHINE)


@pytest.mark.parametrize(
    ("kind", "grown"), [("prefill", "× (requests per second)"), ("prompts", "× (tokens per request)")]
)
def test_an_overload_that_no_cause_explains_goes_before_a_host_that_is_busy_all_along(kind: str, grown: str) -> None:
    found = said(kind)
    assert found.verdict.status == "abstain"
    assert "work offered to prefill grew to" in found.verdict.reason
    assert grown in found.verdict.reason
    assert "fabric" not in found.verdict.reason
    assert found.baseline is not None


def test_a_queue_that_engines_of_unknown_batches_do_not_keep_up_with_is_the_loads() -> None:
    found = said("overload")
    assert (found.verdict.cause, found.causes[0].nodes) == ("schedule.prefill_queue", ("prefill-0",))
    assert found.causes[0].excess_mean_s > 0.5 * (found.incident.mean_s if found.incident else 0.0)


def _without_speed(bundle: Bundle) -> Bundle:
    return replace(bundle, series=tuple(one for one in bundle.series if one.metric != "nic.link_gbps"))


def _slow_by_design(bundle: Bundle) -> Bundle:
    return replace(
        bundle,
        series=tuple(
            replace(one, value=np.full(len(one.value), 0.5)) if one.metric == "nic.link_gbps" else one
            for one in bundle.series
        ),
    )


def _same_time_for_every_size(bundle: Bundle) -> Bundle:
    numbers = dict(bundle.requests.numbers)
    apart = np.arange(len(numbers["ttft_s"])) * 2.0  # one after the other
    same = np.full(len(apart), float(np.nanmean(numbers["transfer_s"])))
    numbers["ttft_s"] = numbers["ttft_s"] - np.nan_to_num(numbers["transfer_s"]) + same
    numbers |= {"transfer_s": same, "arrival_s": numbers["arrival_s"][0] + apart}
    return replace(bundle, requests=replace(bundle.requests, numbers=numbers))


@pytest.mark.parametrize("change", [_without_speed, _slow_by_design, _same_time_for_every_size])
def test_a_link_is_not_slow_all_along_without_a_speed_it_should_have_and_a_rate_it_is_held_to(
    change: Callable[[Bundle], Bundle],
) -> None:
    bundle = change(read_bundle(PAIR / "chronic"))
    assert diagnose(bundle).verdict.cause != "fabric.link_degraded"
