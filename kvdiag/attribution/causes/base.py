"""What a cause is: the stages it can act in, what physically drives it, and the evidence that it changed."""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

import kvdiag.attribution.causes
from kvdiag.attribution.frame import Frame, Role
from kvdiag.attribution.rates import NodeRate
from kvdiag.model.finding import Evidence
from kvdiag.model.missing import Missing

Floats = NDArray[np.float64]

SEEN = 1.0
"""Strength of a mechanism that counters show directly."""
SHAPE = 0.9
"""Strength of a mechanism read off the shape of the stages alone."""
ELIMINATION = 0.75
"""Strength of a mechanism that is merely the only one that acts in a stage: what would show it was not recorded."""

LEAST_ELIMINATION = 0.01
"""A stage that grew by less than 1 % of the baseline's mean TTFT needs no explanation."""
UNCLEAR = 0.65
"""Strength of a mechanism that is seen but cannot be told from another one: below the gate of a verdict."""

KV_STAGES = ("admit_s", "pull_wait_s", "setup_s", "register_s", "handle_s", "post_s", "wire_s")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dose:
    """How much of the mechanism each request got, zero where it was as in the baseline.

    `columns` are in any unit, each with the largest plausible seconds per unit in `ceilings`; `moved` says whether
    the mechanism itself changed, by the thresholds in `evidence`; `strength` is SEEN, SHAPE or ELIMINATION.
    `own` doses are known of each request itself and explain first; a counter averaged over the requests around it
    explains what they leave; `last` ones, read off the shape of what happened, only what no counter explains.
    """

    columns: tuple[Floats, ...]
    ceilings: tuple[float, ...]
    moved: bool
    evidence: tuple[Evidence, ...]
    strength: float = SEEN
    own: bool = False
    last: bool = False

    @property
    def turn(self) -> int:
        """When it explains: 0 first, 2 last."""
        return 0 if self.own else 2 if self.last else 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Driver:
    """A normal driver of stages (tokens, bytes): its seconds per unit are learnt from the baseline alone.

    What a driver `by_load` costs more belongs to the factors of the offered load that grew, not to its own cause;
    `shared` gives a part of it to other causes, by their id.
    """

    column: Floats
    stages: tuple[str, ...]
    by_load: bool = False
    shared: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A factor of the work offered to prefill: `ratio` incident / baseline, `error` the standard error of its log."""

    ratio: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """`stages` are fine stages; `owns` those whose otherwise unexplained excess is this cause's, if it moved.

    `side` is where the cause sits (None: wherever its seconds concentrate).
    `strength` says how clearly a cause without a dose can be told from its neighbours (default SEEN).
    `standing` is the dose where there is no baseline, if it is not `dose`, and `standing_stages` where it acts.
    A `symptom` also follows from slow transfers: where those have a cause of their own, it is not named before it.
    `workload` marks what users asked for, as against what the machines did.
    """

    id: str
    action: str
    stages: tuple[str, ...] = ()
    owns: tuple[str, ...] = ()
    side: Role | None = None
    workload: bool = False
    symptom: bool = False
    dose: Callable[[Frame], Dose | Missing] | None = None
    drivers: Callable[[Frame], tuple[Driver, ...] | Missing] | None = None
    load: Callable[[Frame], Load | Missing] | None = None
    evidence: Callable[[Frame], tuple[Evidence, ...]] | None = None
    standing: Callable[[Frame], Dose | Missing] | None = None
    standing_stages: tuple[str, ...] = ()
    strength: Callable[[Frame], float] | None = None


def discover() -> tuple[Cause, ...]:
    """Return the CAUSE object of every module in this folder that has one, sorted by id."""
    found = []
    for module_info in pkgutil.iter_modules(kvdiag.attribution.causes.__path__):
        module = importlib.import_module(f"kvdiag.attribution.causes.{module_info.name}")
        cause = getattr(module, "CAUSE", None)
        if isinstance(cause, Cause):
            found.append(cause)
    return tuple(sorted(found, key=lambda cause: cause.id))


def positive(values: Floats) -> Floats:
    """Return the values above zero; not observed counts as no dose."""
    return np.maximum(np.nan_to_num(values, nan=0.0), 0.0)


def by_wire_time(frame: Frame, size: Floats, factor: Floats) -> tuple[Floats, Floats]:
    """Return a factor of slowness times each request's baseline wire seconds, and times the mean request's.

    The second is for what does not grow with a transfer's own bytes: waiting behind others', a retransmission timeout.
    """
    seconds = size * frame.seconds_per_byte()
    return seconds * factor, float(seconds.mean()) * factor


def rate_evidence(metric: str, rates: list[NodeRate], unit: str, threshold: str, most: int = 3) -> tuple[Evidence, ...]:
    """Return one line per node, the largest rise first: usual rate, rate in question, and where they were read."""
    worst = sorted(rates, key=lambda rate: rate.incident - rate.base, reverse=True)[:most]
    return tuple(
        Evidence(
            name=f"{metric} @ {rate.node}",
            value=f"{rate.base:.4g} → {rate.incident:.4g} {unit}",
            source=f"{rate.origin}, {metric}: mean, usual → in question",
            threshold=threshold,
        )
        for rate in worst
    )


def counter_dose(
    frame: Frame,
    metric: str,
    roles: tuple[Role, ...],
    *,
    per_pull: bool,
    factor: float,
    least: float,
    unit: str,
    pad_s: float | None = None,
) -> Dose | Missing:
    """Return the excess of one counter or gauge at the row's nodes over those nodes' own baseline.

    It moved where some node's incident mean is above `factor` times its baseline mean and `least` (`unit`) above it.
    """
    column = np.zeros(frame.rows)
    moved: list[NodeRate] = []
    seen: list[NodeRate] = []
    for role in roles:
        values = frame.around(metric, role, pad_s)
        if values is None:
            continue
        pulls = frame.pull_rate(role)
        scale = 1 / pulls if per_pull else np.ones(frame.rows)
        column += positive(values - frame.reference(metric, role, "base_high")) * scale
        labels = frame.nodes(role)
        for code, node in enumerate(labels.names):
            rate = frame.rates(metric).get(node)
            rows = labels.codes == code
            if rate is None or rate in seen or not rows.any():
                continue
            seen.append(rate)
            bar = least * (
                float(pulls[rows & frame.incident].mean()) if per_pull and (rows & frame.incident).any() else 1
            )
            if rate.incident > factor * rate.base and rate.incident - rate.base > bar:
                moved.append(rate)
    if not seen:
        return Missing(f"{metric} was not recorded at the nodes of the requests")
    return Dose(
        columns=(column,),
        ceilings=(np.inf,),
        moved=bool(moved),
        evidence=rate_evidence(
            metric, moved or seen, f"{unit.partition(' ')[0]}", f"> {factor:g}× and + {least:g} {unit}"
        ),
    )


def by_elimination(frame: Frame, stage: str, what: str, counters: str) -> Dose | Missing:
    """Return a dose without columns: `stage` can only be `what`, and the counters that would show it are absent."""
    values = frame.stages.stage(stage)
    if values is None:
        return Missing(f"neither {counters} nor a {stage} stage was recorded")
    before = 0.0 if frame.standing else float(values[~frame.incident].mean())
    after = float(values[frame.incident].mean())
    usual = float(frame.stages.ttft_s[slice(None) if frame.standing else ~frame.incident].mean())
    evidence = Evidence(
        name=f"{stage}, in which there is only {what}",
        value=f"{before * 1e3:.3g} → {after * 1e3:.3g} ms (means)",
        source=f"requests, {stage}; {counters} was not recorded",
        threshold=f"+ {LEAST_ELIMINATION:.0%} of mean TTFT",
    )
    least = LEAST_ELIMINATION * usual
    return Dose(columns=(), ceilings=(), moved=after - before > least, evidence=(evidence,), strength=ELIMINATION)
