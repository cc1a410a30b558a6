"""What a request would have cost at the baseline's cache hit ratio, and by how much a factor of the load changed."""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from kvdiag.attribution.causes.base import Load
from kvdiag.attribution.frame import Floats, Frame
from kvdiag.derive.counters import node_windows


def turn_class(frame: Frame) -> NDArray[np.int64]:
    """Return 0 for the first turn of a conversation, 1 for later ones (all 0 where turns are not recorded)."""
    turn = frame.number("turn")
    return np.zeros(frame.rows, dtype=np.int64) if turn is None else (turn > 1).astype(np.int64)


def usual_uncached(frame: Frame) -> Floats | None:
    """Return prompt tokens times the baseline's uncached share in that class of turns; None without prompt lengths."""
    prompt = frame.number("prompt_tokens")
    uncached = frame.number("uncached_tokens")
    if prompt is None or uncached is None:
        return uncached if prompt is None else prompt
    kind = turn_class(frame)
    usual = np.zeros(frame.rows)
    for one in np.unique(kind):
        base = (kind == one) & ~frame.incident
        whole = base if prompt[base].sum() > 0 else ~frame.incident
        share = uncached[whole].sum() / max(float(prompt[whole].sum()), 1.0)
        usual[kind == one] = prompt[kind == one] * share
    return usual


def log_ratio(values: Floats, incident: NDArray[np.bool_]) -> Load:
    """Return the ratio of means and the standard error of its logarithm (delta method, independent rows)."""
    before, after = values[~incident], values[incident]
    mean_before, mean_after = max(float(before.mean()), 1e-12), max(float(after.mean()), 1e-12)
    error = np.sqrt(before.var() / len(before) / mean_before**2 + after.var() / len(after) / mean_after**2)
    return Load(ratio=mean_after / mean_before, error=float(error))


def recomputed(frame: Frame) -> Floats | None:
    """Return uncached tokens beyond what the baseline's hit ratio leaves; None where they are not recorded."""
    uncached, usual = frame.number("uncached_tokens"), usual_uncached(frame)
    if uncached is None or usual is None or frame.number("prompt_tokens") is None:
        return None
    return uncached - usual


FIRST_TURN_LOSS = 0.5
"""A prefix cache that misses loses the same part of first turns' hits (shared system prompts) as of later ones; lost
histories leave first turns as they were. Half way between tells them apart."""
LEAST_HITS = 0.02


@dataclass(frozen=True, slots=True)
class LostHits:
    """Which part of their cached share first and later turns lost, and the standard error of what tells them apart."""

    first: float
    later: float
    error: float

    @property
    def turning(self) -> float:
        """Standard errors from the point where it turns over; positive where first turns lost theirs as well."""
        return (self.first - FIRST_TURN_LOSS * max(self.later, 0.0)) / max(self.error, 1e-9)

    @property
    def first_too(self) -> bool:
        """Whether first turns lost theirs as later ones did, rather than not at all."""
        return self.turning > 0

    @property
    def is_clear(self) -> bool:
        """Whether that is more than one standard error from turning over."""
        return abs(self.turning) > 1

    @property
    def certainty(self) -> float:
        """The probability that it is as it looks, the measured losses being normal around the true ones."""
        return NormalDist().cdf(abs(self.turning))

    @property
    def prefix_share(self) -> float:
        """The part of the loss to book to lost prefixes, the rest to lost histories: 1 or 0 where that is clear."""
        if self.is_clear:
            return 1.0 if self.first_too else 0.0
        return NormalDist().cdf(self.turning)


def lost_hits(frame: Frame) -> LostHits | None:
    """Return what first and later turns lost; None where turns or hits are not recorded or too few."""
    prompt, uncached, turn = frame.number("prompt_tokens"), frame.number("uncached_tokens"), frame.number("turn")
    if prompt is None or uncached is None or turn is None:
        return None
    lost, errors = [], []
    for kind in (0, 1):
        hits = []
        for period in (~frame.incident, frame.incident):
            rows = (turn_class(frame) == kind) & period
            if not rows.any() or prompt[rows].sum() <= 0:
                return None
            # Every request counts alike: weighted by tokens, a few long prompts would decide.
            ratio = 1 - uncached[rows] / np.maximum(prompt[rows], 1.0)
            hits.append((float(ratio.mean()), float(ratio.std() / np.sqrt(rows.sum()))))
        if hits[0][0] < LEAST_HITS:
            return None
        lost.append(1 - hits[1][0] / hits[0][0])
        errors.append(float(np.hypot(hits[0][1], hits[1][1])) / hits[0][0])
    return LostHits(first=lost[0], later=lost[1], error=float(np.hypot(errors[0], FIRST_TURN_LOSS * errors[1])))


LOAD_BIN_S = 20.0


def expected_co_batch(frame: Frame) -> Floats | None:
    """Return the co-batched tokens that the baseline would show at the request's own prefill load, or None.

    Per prefill node and 20 s, the baseline's mean co-batched tokens are regressed on the node's token rate and its
    square; engine.prefill_tokens (unsampled) gives the rate where recorded, else the rows. How many come while a batch
    computes follows that rate; how many tokens they bring follows their length as well: hence times the ratio of the
    periods' mean tokens.
    """
    extra = co_batch(frame)
    tokens = frame.number("uncached_tokens")
    if extra is None or tokens is None:
        return None
    labels = frame.nodes("prefill")
    before, until = frame.kv_window() if frame.windowed else (frame.arrival_s - LOAD_BIN_S, frame.arrival_s)
    windows = node_windows(labels.names, labels.codes, before, until)
    rate = frame.counters.per_row("engine.prefill_tokens", windows)
    if np.isnan(rate).any():
        cell = (labels.codes.astype(np.int64) + 1) * 1_000_000 + (
            (frame.arrival_s - frame.start_s) // LOAD_BIN_S
        ).astype(int)
        _, index = np.unique(cell, return_inverse=True)
        offered = np.bincount(index, weights=tokens)[index] / LOAD_BIN_S / frame.sampling
        rate = np.where(np.isnan(rate), offered, rate)
    base = ~frame.incident
    scale = max(float(rate[base].mean()), 1e-9)
    columns = np.column_stack([np.ones(frame.rows), rate / scale, (rate / scale) ** 2])
    fit, *_ = np.linalg.lstsq(columns[base], extra[base], rcond=None)
    longer = float(tokens[frame.incident].mean()) / max(float(tokens[base].mean()), 1e-9)
    expected: Floats = np.maximum(columns @ fit, 0.0) * np.where(base, 1.0, longer)
    return expected


def co_batch(frame: Frame) -> Floats | None:
    """Return the tokens of other requests in the same prefill batch; None where batches are not recorded."""
    batch, tokens = frame.number("batch_tokens"), frame.number("uncached_tokens")
    return None if batch is None or tokens is None else np.maximum(batch - tokens, 0.0)


def compute_slowdown(frame: Frame) -> float:
    """Return the logarithm by which prefill computes slower than the baseline's own line in tokens says, at least 0.

    Per prefill node, averaged with the seconds that its queue grew by: one slow node fills its own queue only.
    """
    prefill, queue = frame.stages.stage("prefill_s"), frame.stages.stage("queue_s")
    tokens, beside = frame.number("uncached_tokens"), co_batch(frame)
    if tokens is None:
        tokens = frame.number("prompt_tokens")
    if prefill is None or queue is None or tokens is None:
        return 0.0
    columns = np.column_stack([np.ones(frame.rows), tokens, *(() if beside is None else (beside,))])
    base = ~frame.incident
    fit, *_ = np.linalg.lstsq(columns[base], prefill[base], rcond=None)
    expected = columns @ fit
    codes = frame.nodes("prefill").codes
    logs, weights = [], []
    for code in np.unique(codes):
        before, after = base & (codes == code), frame.incident & (codes == code)
        if min(before.sum(), after.sum()) < LEAST_NODE_ROWS or expected[after].sum() <= 0:
            continue
        ratio = prefill[after] / max(float(expected[after].mean()), 1e-9)
        slow = float(np.log(max(float(ratio.mean()), 1e-9)))
        noise = SLOW_ERRORS * float((ratio - expected[after] / expected[after].mean()).std()) / np.sqrt(after.sum())
        logs.append(slow if slow > max(noise, LEAST_SLOWDOWN) else 0.0)
        weights.append(max(float(queue[after].mean() - queue[before].mean()), 0.0) * float(after.sum()))
    if not logs or sum(weights) <= 0:
        return 0.0
    return float(np.average(logs, weights=weights))


LEAST_NODE_ROWS = 20
SLOW_ERRORS = 3.0
LEAST_SLOWDOWN = 0.02
"""Seconds per token that grew by less than 2 %, or three standard errors, are the same."""
