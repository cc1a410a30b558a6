"""cache.prefix_miss: prompts that used to be found in the prefix cache are computed again."""

import numpy as np

from kvdiag.attribution.causes.base import UNCLEAR, Cause, Dose, Driver, Load
from kvdiag.attribution.frame import Frame
from kvdiag.attribution.loads import factors
from kvdiag.attribution.waves import hit_waves
from kvdiag.attribution.workload import lost_hits, recomputed
from kvdiag.model.finding import Evidence
from kvdiag.model.missing import Missing

UNKNOWN_SHARE = 0.6
"""Where turns are not recorded, more than half: lost histories are a case of lost prefixes, told by turns alone."""


def drivers(frame: Frame) -> tuple[Driver, ...] | Missing:
    """Return the tokens computed beyond the baseline's hit ratio, unless only later turns lost theirs."""
    tokens = recomputed(frame)
    if tokens is None:
        return Missing("requests have no uncached_tokens beside prompt_tokens")
    share = prefix_share(frame)
    shared = {"cache.multi_turn_recompute": 1 - share} if 0 < share < 1 else {}
    return (Driver(column=tokens, stages=("prefill_s",), shared=shared),) if share > 0 else ()


def prefix_share(frame: Frame) -> float:
    """Return the part of lost hits that is booked to lost prefixes."""
    lost = lost_hits(frame)
    return UNKNOWN_SHARE if lost is None else lost.prefix_share


def part_of(load: Load | Missing, share: float) -> Load | Missing:
    """Return that share of a factor's logarithm."""
    if isinstance(load, Missing) or share == 1:
        return load
    return Load(ratio=load.ratio**share, error=load.error * share)


def strength(frame: Frame) -> float:
    """Return how surely a lost prefix is told from lost histories; UNCLEAR where too few turns were seen."""
    lost = lost_hits(frame)
    return lost.certainty if lost is not None and lost.is_clear else UNCLEAR


def load(frame: Frame) -> Load | Missing:
    """Return the ratio of computed tokens to what the baseline's hit ratio leaves."""
    share = prefix_share(frame)
    return part_of(factors(frame).miss, share) if share > 0 else Missing("first turns hit the cache as before")


def evidence(frame: Frame) -> tuple[Evidence, ...]:
    """Return the hit ratio by class of turns before and after."""
    prompt, uncached, turn = frame.number("prompt_tokens"), frame.number("uncached_tokens"), frame.number("turn")
    if prompt is None or uncached is None:
        return ()
    classes = {"all turns": prompt > 0}
    if turn is not None:
        classes = {"first turns": turn <= 1, "later turns": turn > 1}
    lines = []
    for name, rows in classes.items():
        parts = [rows & ~frame.incident, rows & frame.incident]
        if all(prompt[part].sum() > 0 for part in parts):
            ratios = [1 - float(uncached[part].sum() / prompt[part].sum()) for part in parts]
            value = f"{ratios[0]:.1%} → {ratios[1]:.1%}"
            lines.append(Evidence(name=f"cached share of prompt tokens, {name}", value=value, source="requests"))
    return tuple(lines)


def standing(frame: Frame) -> Dose | Missing:
    """Return the tokens computed beyond good times' hit ratio, if first turns lost hits too or turns are unknown."""
    return standing_dose(frame, first_turns=True)


def standing_dose(frame: Frame, *, first_turns: bool) -> Dose | Missing:
    """Return the tokens computed beyond good times' hit ratio, where first turns lost hits as given."""
    waves = hit_waves(frame)
    if isinstance(waves, Missing):
        return waves
    lost = waves.lost
    return Dose(
        columns=(waves.extra,),
        ceilings=(np.inf,),
        moved=(lost is None or lost.first_too) is first_turns,
        evidence=tuple(
            Evidence(name="cached share of prompt tokens", value=line, source="requests, over windows of time")
            for line in waves.lines
        ),
        strength=UNCLEAR,
    )


CAUSE = Cause(
    id="cache.prefix_miss",
    side="prefill",
    drivers=drivers,
    load=load,
    evidence=evidence,
    strength=strength,
    standing=standing,
    standing_stages=("prefill_s",),
    action="see why the prefix cache lost its entries: eviction (too small for the working set), changed prompt "
    "templates, a restart, routing that no longer follows the prefix",
)
