"""Without a baseline: what the whole period costs beyond expectation, booked to the causes that are present in it.

Expectation: a warmed-up deployment waits for no registration, connection, handle or KV space; a byte costs what it
costs the best tenth of transfers, and a quarter more for sharing; the queue is that of quiet times.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from kvdiag.attribution.batching import Batching, batching
from kvdiag.attribution.blocks import Moments, moments
from kvdiag.attribution.causes.base import SEEN, Cause, Dose, Load
from kvdiag.attribution.causes.layout_fragmented import MOST_SECONDS, surplus
from kvdiag.attribution.columns import Columns, Mechanism, build_columns
from kvdiag.attribution.frame import BEST_TENTH, CONTENTION, MOST_SLOWNESS, Floats, Frame
from kvdiag.attribution.ledger import QUEUE, Ledger, solve
from kvdiag.attribution.nnls import bounded_least_squares
from kvdiag.attribution.waves import HitWaves, arrival_waves, hit_waves, length_waves, windows
from kvdiag.attribution.workload import co_batch
from kvdiag.model.finding import Evidence
from kvdiag.model.missing import Missing

NOT_AT_ALL = ("admit_s", "setup_s", "register_s", "handle_s")
"""Stages that a warmed-up deployment does not have."""
WAITING = ("pull_wait_s", "pre_transfer_s")
PER_BYTE = ("post_s", "wire_s", "transfer_s", "kv_wait_s")
WIDER = (0.7, 1.4)
"""An interval's ends are moved out by these factors: the expectation itself is uncertain by about a third."""
PENALTY = 8.0
"""Ridge on the unexplained steps: higher than against a baseline, for a fault that never pauses looks like a step."""
STRENGTH = 0.9
"""Every mechanism counts a tenth less than against a baseline."""


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """The ledger of the whole period against expectation, at the point and over the bootstrap."""

    columns: Columns
    point: Ledger
    boot: Ledger
    blocks: Moments
    expected: Floats


def expected_stages(frame: Frame, hits: HitWaves | Missing) -> Floats:
    """Return each row's stages, in seconds, as they should have been; as recorded where nothing is expected."""
    seconds = frame.stages.seconds
    expected = seconds.copy()
    size = frame.number("bytes")
    for s, name in enumerate(frame.stages.names):
        values, known = seconds[:, s], frame.stages.known(name)
        if name == QUEUE:
            index = windows(frame)
            count = np.bincount(index)
            means = np.bincount(index, weights=values)[count > 0] / count[count > 0]
            expected[:, s] = min(float(np.quantile(means, 0.25)), float(values.mean()))
        elif name in NOT_AT_ALL:
            expected[:, s] = 0.0
        elif name in WAITING and known.any():
            expected[:, s] = np.minimum(values, np.quantile(values[known], BEST_TENTH))
        elif name in PER_BYTE and size is not None and (moved := (size > 0) & known).any():
            slope = CONTENTION * float(np.quantile(values[moved] / size[moved], BEST_TENTH))
            expected[:, s] = np.where(known, size * min(slope, _slowest(frame)), 0.0)
            if name == "post_s":
                expected[:, s] = np.minimum(expected[:, s], _contiguous(frame, size, values))
        elif name == "prefill_s":
            own, beside = _token_seconds(frame, values)
            batches = batching(frame)
            if isinstance(hits, HitWaves):
                expected[:, s] -= own * hits.extra
            if isinstance(batches, Batching) and batches.lingers:
                expected[:, s] = np.maximum(expected[:, s] - beside * batches.extra, 0.0)
    return expected


def _contiguous(frame: Frame, size: Floats, posting: Floats) -> Floats:
    """Return what each request's posting seconds would be with contiguous blocks (infinite where they are, or unknown).

    Posting is work per descriptor, so they shrink in proportion, but by no more than descriptors can cost.
    """
    descriptors = frame.number("descriptors")
    if descriptors is None:
        return np.full(frame.rows, np.inf)
    fragments = surplus(descriptors, size)
    kept = 1 - fragments / np.maximum(descriptors, 1)
    shrunk: Floats = np.maximum(posting * kept, posting - MOST_SECONDS * fragments)
    return np.where(fragments > 0, shrunk, np.inf)


def _slowest(frame: Frame) -> float:
    """Return the seconds per byte beyond which nothing is healthy (infinite where no link speed was recorded)."""
    rates = frame.rates("nic.link_gbps").values()
    fastest = max((rate.base for rate in rates if np.isfinite(rate.base)), default=0.0)
    return MOST_SLOWNESS * 8e-9 / fastest if fastest > 0 else float("inf")


def _token_seconds(frame: Frame, prefill: Floats) -> tuple[float, float]:
    """Return prefill seconds per computed token of the request's own and of others in its batch, neither negative."""
    tokens, beside = frame.number("uncached_tokens"), co_batch(frame)
    if tokens is None:
        return 0.0, 0.0
    columns = np.column_stack([tokens, np.ones(frame.rows), *(() if beside is None else (beside,))])
    gram = columns.T @ columns
    slopes = bounded_least_squares(gram[None], (columns.T @ prefill)[None], np.full((1, len(gram)), np.inf))[0]
    return float(slopes[0]), 0.0 if beside is None else float(slopes[2])


def standing_mechanisms(frame: Frame, causes: tuple[Cause, ...], hits: HitWaves | Missing) -> tuple[Mechanism, ...]:
    """Ask every cause for its dose against expectation; causes of the workload have only the load they add."""
    found = []
    for cause in causes:
        ask = cause.standing or cause.dose
        dose = ask(frame) if ask else Missing("this cause has none")
        if isinstance(dose, Dose):
            dose = replace(dose, strength=dose.strength * STRENGTH)
        load: Load | Missing = Missing("this cause has none")
        told = cause.evidence
        if cause.id == "schedule.prefill_queue":
            load = arrival_waves(frame)
        elif cause.id == "workload.prompt_length":
            load = length_waves(frame)
        elif cause.id == "workload.prefill_batch":
            batches = batching(frame)
            load = batches.load if isinstance(batches, Batching) and batches.lingers else load
        elif cause.standing_stages and isinstance(dose, Dose) and dose.moved and isinstance(hits, HitWaves):
            load = hits.load
        if isinstance(load, Load):
            told = _against_quiet(load)
        stages = cause.standing_stages or cause.stages
        strength = dose.strength if isinstance(dose, Dose) else SEEN * STRENGTH
        found.append(Mechanism(replace(cause, stages=stages, evidence=told), dose, (), load, strength))
    return tuple(found)


def _against_quiet(load: Load) -> Callable[[Frame], tuple[Evidence, ...]]:
    line = Evidence(
        name="work offered to prefill",
        value=f"{load.ratio:.3f}× that of quiet times",
        source="requests and engine counters, over windows of time",
    )
    return lambda _: (line,)


def against_expectation(frame: Frame, causes: tuple[Cause, ...], replicates: int, seed: int) -> Standing:
    """Return the ledger of a frame without a baseline: as if its rows had been recorded once more, as expected."""
    hits = hit_waves(frame)
    found = standing_mechanisms(frame, causes, hits)
    columns = build_columns(frame, found)
    expected = expected_stages(frame, hits)
    healthy = columns.matrix.copy()
    healthy[:, columns.doses] = 0.0
    healthy[:, columns.unknown] = 0.0
    healthy[:, columns.cut] = expected
    healthy[:, columns.raw] = expected
    span, total = (frame.start_s, frame.end_s), frame.stages.ttft_s
    observed = moments(columns.matrix, frame.arrival_s, *span, total, frame.least_bin_s)
    ideal = moments(healthy, frame.arrival_s, *span, total, frame.least_bin_s)
    # The same blocks are drawn for both: they are the same requests.
    drawn_ideal, drawn = (one.resample(replicates, np.random.default_rng(seed)) for one in (ideal, observed))
    return Standing(
        columns=columns,
        point=solve(columns, ideal.total[None], observed.total[None], penalty=PENALTY),
        boot=solve(columns, drawn_ideal, drawn, penalty=PENALTY),
        blocks=observed,
        expected=expected,
    )
