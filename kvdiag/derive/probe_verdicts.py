"""Verdicts on a probe's figures: by interval, never by one number, and none where the samples do not suffice."""

from collections.abc import Iterable, Mapping, Sequence

from kvdiag.derive.amounts import amount
from kvdiag.derive.intervals import FEWEST_SAMPLES, median_interval
from kvdiag.model.probe_judgement import Judgement, Metric


def judge(rule: str, one: Metric, limit: float) -> Judgement:
    """Compare a metric's whole interval with a limit in its unit.

    met where all of the interval is on the good side, missed where all is on the bad side, else undetermined.
    """
    if one.low is None or one.high is None:
        reason = f"{one.samples} samples are too few for an interval: give --rounds {FEWEST_SAMPLES} or more"
        return _judgement(rule, one, limit, "undetermined", reason)
    worst, best = (one.low, one.high) if one.better == "higher" else (-one.high, -one.low)
    bound = limit if one.better == "higher" else -limit
    low, high = amount(one.low, one.unit), amount(one.high, one.unit)
    interval = f"interval {low} to {high} of {one.samples} samples"
    if worst >= bound:
        return _judgement(rule, one, limit, "met", interval)
    if best < bound:
        return _judgement(rule, one, limit, "missed", interval)
    return _judgement(rule, one, limit, "undetermined", f"{interval} includes the limit: give more --rounds")


def judge_baseline(
    metrics: Iterable[Metric], earlier: Sequence[Mapping[str, float]], tolerance: float, others: str = ""
) -> tuple[Judgement, ...]:
    """Compare each metric with the same metric of earlier runs (name to median).

    The limit is the bad end of the earlier runs' interval, by a factor of 1 + `tolerance` to the worse: whatever the
    tolerance, a rate may not fall to nothing. `others` says what runs there are that are not comparable.
    """
    found = []
    for one in metrics:
        values = [run[one.name] for run in earlier if one.name in run]
        interval = median_interval(values)
        if interval is None:
            count = f"{len(values)} comparable run{'' if len(values) == 1 else 's'} in the baseline{others}"
            reason = f"{count}, {FEWEST_SAMPLES} needed: run again with --out"
            found.append(_judgement("--baseline", one, None, "undetermined", reason))
        elif one.better == "higher":
            found.append(judge("--baseline", one, interval[0] / (1 + tolerance)))
        else:
            found.append(judge("--baseline", one, interval[1] * (1 + tolerance)))
    return tuple(found)


def worst(judgements: Iterable[Judgement]) -> str:
    """Return the gravest status: missed, then undetermined, then met (also of none)."""
    statuses = {one.status for one in judgements}
    return next((status for status in ("missed", "undetermined") if status in statuses), "met")


def undecided(rule: str, one: Metric, reason: str) -> Judgement:
    """Return the judgement of a rule whose limit is not known here."""
    return _judgement(rule, one, None, "undetermined", reason)


def _judgement(rule: str, one: Metric, limit: float | None, status: str, reason: str) -> Judgement:
    return Judgement(
        rule=rule,
        metric=one.name,
        status=status,  # type: ignore[arg-type]
        unit=one.unit,
        value=one.value,
        limit=limit,
        reason=reason,
    )
