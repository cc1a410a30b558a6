"""cache.multi_turn_recompute: later turns compute their conversation's history again."""

from kvdiag.attribution.causes.base import Cause, Dose, Driver, Load
from kvdiag.attribution.causes.cache_prefix_miss import evidence, part_of, prefix_share, standing_dose, strength
from kvdiag.attribution.frame import Frame
from kvdiag.attribution.loads import factors
from kvdiag.attribution.workload import recomputed
from kvdiag.model.missing import Missing


def drivers(frame: Frame) -> tuple[Driver, ...] | Missing:
    """Return the tokens computed beyond the baseline's hit ratio, if first turns hit the cache as before."""
    tokens = recomputed(frame)
    if tokens is None:
        return Missing("requests have no uncached_tokens beside prompt_tokens")
    # Where that cannot be told, the driver of cache.prefix_miss shares its seconds with this cause.
    return () if prefix_share(frame) > 0 else (Driver(column=tokens, stages=("prefill_s",)),)


def load(frame: Frame) -> Load | Missing:
    """Return the ratio of computed tokens to what the baseline's hit ratio leaves."""
    share = prefix_share(frame)
    if share == 1:
        return Missing("first turns lost cached tokens too, or turns are not recorded")
    return part_of(factors(frame).miss, 1 - share)


def standing(frame: Frame) -> Dose | Missing:
    """Return the tokens computed beyond good times' hit ratio, if only later turns lost hits."""
    return standing_dose(frame, first_turns=False)


CAUSE = Cause(
    id="cache.multi_turn_recompute",
    side="prefill",
    drivers=drivers,
    load=load,
    evidence=evidence,
    strength=strength,
    standing=standing,
    standing_stages=("prefill_s",),
    action="keep conversations where their KV cache is: sticky routing of turns, KV transfer back to prefill, longer "
    "retention of finished turns",
)
