"""workload.prompt_length: longer prompts mean more compute and more bytes."""

import numpy as np

from kvdiag.attribution.causes.base import KV_STAGES, Cause, Driver, Load
from kvdiag.attribution.frame import Frame
from kvdiag.attribution.loads import factors
from kvdiag.attribution.workload import usual_uncached
from kvdiag.model.finding import Evidence
from kvdiag.model.missing import Missing


def drivers(frame: Frame) -> tuple[Driver, ...] | Missing:
    """Return the tokens to compute at the baseline's hit ratio, and the bytes to move."""
    tokens, size = usual_uncached(frame), frame.number("bytes")
    found = []
    if tokens is not None:
        found.append(Driver(column=tokens, stages=("prefill_s",)))
    if size is not None or tokens is not None:
        kv = size if size is not None else frame.number("prompt_tokens")
        assert kv is not None
        found.append(Driver(column=kv, stages=KV_STAGES))
    return tuple(found) if found else Missing("requests have neither prompt_tokens nor bytes")


def load(frame: Frame) -> Load | Missing:
    """Return the ratio of mean tokens to compute per request, at the baseline's hit ratio."""
    return factors(frame).length


def evidence(frame: Frame) -> tuple[Evidence, ...]:
    """Return prompt lengths and bytes per request before and after."""
    lines = []
    for name, unit, scale in (("prompt_tokens", "tokens", 1.0), ("bytes", "MB", 1e6)):
        values = frame.number(name)
        if values is not None:
            before, after = values[~frame.incident] / scale, values[frame.incident] / scale
            lines.append(
                Evidence(
                    name=f"{name} per request",
                    value=f"mean {np.mean(before):,.4g} → {np.mean(after):,.4g} {unit}, "
                    f"median {np.median(before):,.4g} → {np.median(after):,.4g}",
                    source=f"requests, {name}",
                )
            )
    return tuple(lines)


CAUSE = Cause(
    id="workload.prompt_length",
    workload=True,
    drivers=drivers,
    load=load,
    evidence=evidence,
    action="nothing is broken: longer prompts cost more; plan capacity for them, or route long prompts apart",
)
