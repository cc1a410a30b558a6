"""By which factors the work offered to prefill changed: arrivals x prompt length x share computed, from all there is.

Rows may be a sample; counters are not. Each observation is a sum of the three logarithms with its own error, and all
of them together are solved by weighted least squares: at 1 % sampling the rows alone miss a change of a fifth.
"""

from dataclasses import dataclass

import numpy as np

from kvdiag.attribution.causes.base import Load
from kvdiag.attribution.frame import Floats, Frame, Role
from kvdiag.attribution.workload import log_ratio, recomputed, usual_uncached
from kvdiag.model.missing import Missing

COUNTER_ERROR = 0.01
"""Other traffic, edges of the counting intervals: counters are good for about one per cent."""
PROXY_ERROR = 0.02
SAMPLED = 0.5
"""From a sample below this, counters of bytes, tokens and transfers help; above it, rows are nearly all there is."""
CONSISTENT = 3.0
"""A counter further than that many errors (and CONSISTENT_LEAST) from the rows counts something else too."""
CONSISTENT_LEAST = 0.05
TRANSFERS = ("nixl.transfers", "reg.cache_lookups")
"""One transfer per request, and one look-up per transfer: their rates follow the arrivals."""


@dataclass(frozen=True, slots=True)
class Factors:
    """Each factor's ratio incident / baseline and the error of its logarithm; Missing where nothing shows it."""

    arrivals: Load
    length: Load | Missing
    miss: Load | Missing


def factors(frame: Frame) -> Factors:
    """Return the three factors of the offered load; computed once per frame."""
    known = frame.memo.get("factors")
    if not isinstance(known, Factors):
        known = _factors(frame)
        frame.memo["factors"] = known
    return known


def _factors(frame: Frame) -> Factors:
    spans = (frame.period_s(incident=False), frame.period_s(incident=True))
    # Rows of windows repeat the prefill side's mean for every decode node.
    repeats = float(np.sqrt(max(len(frame.node_names("decode")), 1))) if frame.windowed else 1.0
    after = int(frame.incident.sum())
    before = frame.rows - after
    by_rows = np.log(max(after, 1) / spans[1] / (max(before, 1) / spans[0]))
    rows_error = float(np.sqrt(1 / max(after, 1) + 1 / max(before, 1)))
    length, miss = (_wider(one, repeats) for one in (_length(frame), _miss(frame)))
    observed: list[tuple[tuple[float, float, float], float, float]] = [((1, 0, 0), float(by_rows), rows_error)]
    if isinstance(length, Load):
        observed.append(((0, 1, 0), float(np.log(length.ratio)), max(length.error, 1e-4)))
    if isinstance(miss, Load):
        observed.append(((0, 0, 1), float(np.log(miss.ratio)), max(miss.error, 1e-4)))
    counted = _counted(frame, "engine.arrivals", "prefill")
    if counted is not None:
        observed.append(((1, 0, 0), counted, COUNTER_ERROR))
    if frame.sampling < SAMPLED and isinstance(length, Load) and isinstance(miss, Load):
        others = [((1.0, 1.0, 1.0), "engine.prefill_tokens", "prefill"), ((1.0, 1.0, 0.0), "nic.tx_bytes", "prefill")]
        if counted is None:
            others += [((1.0, 0.0, 0.0), name, "decode") for name in TRANSFERS]
        for weights, metric, role in others:
            value = _counted(frame, metric, role)  # type: ignore[arg-type]
            if value is None:
                continue
            rows = sum(w * one[1] for w, one in zip(weights, observed, strict=False))
            error = float(np.sqrt(sum(w * one[2] ** 2 for w, one in zip(weights, observed, strict=False))))
            if abs(value - rows) <= max(CONSISTENT * error, CONSISTENT_LEAST):
                observed.append((weights, value, PROXY_ERROR))
    design = np.array([one[0] for one in observed]) / np.array([[one[2]] for one in observed])
    goal = np.array([one[1] / one[2] for one in observed])
    unknown = [j for j in range(3) if (design[:, j] != 0).any()]
    logs, errors = np.zeros(3), np.zeros(3)
    normal = design[:, unknown].T @ design[:, unknown]
    logs[unknown] = np.linalg.solve(normal, design[:, unknown].T @ goal)
    errors[unknown] = np.sqrt(np.diag(np.linalg.inv(normal)))
    # Chance alone moves even complete counts: what the rows' own error would be, had all requests been recorded.
    least = [one[2] * np.sqrt(frame.sampling) for one in observed[:3]]
    results = [Load(ratio=float(np.exp(logs[0])), error=float(max(errors[0], least[0])))]
    for j, one in ((1, length), (2, miss)):
        if isinstance(one, Missing):
            continue
        chance = one.error * float(np.sqrt(frame.sampling))
        results.append(Load(ratio=float(np.exp(logs[j])), error=float(max(errors[j], chance))))
    return Factors(
        arrivals=results[0],
        length=length if isinstance(length, Missing) else results[1],
        miss=miss if isinstance(miss, Missing) else results[-1],
    )


def _wider(load: Load | Missing, factor: float) -> Load | Missing:
    return load if isinstance(load, Missing) else Load(ratio=load.ratio, error=load.error * factor)


def _length(frame: Frame) -> Load | Missing:
    tokens = usual_uncached(frame)
    return Missing("requests have no prompt_tokens") if tokens is None else log_ratio(tokens, frame.incident)


def _miss(frame: Frame) -> Load | Missing:
    """Return by which factor cache misses alone raised the tokens to compute."""
    extra, usual = recomputed(frame), usual_uncached(frame)
    if extra is None or usual is None:
        return Missing("requests have no uncached_tokens beside prompt_tokens")
    mean = max(float(usual[frame.incident].mean()), 1e-9)
    after: Floats = extra[frame.incident]
    return Load(
        ratio=max(1 + float(after.mean()) / mean, 1e-6),
        error=float(after.std() / max(len(after), 1) ** 0.5 / mean),
    )


def _counted(frame: Frame, metric: str, role: Role) -> float | None:
    """Return the logarithm of incident / baseline rate of a counter, where all nodes of the side have it."""
    rates = frame.rates(metric)
    names = frame.node_names(role)
    if not names or not set(names) <= rates.keys():
        return None
    before, after = (sum(getattr(rates[node], which) for node in names) for which in ("base", "incident"))
    return float(np.log(after / before)) if before > 0 and after > 0 else None
