"""layout.fragmented: the same bytes in many more, smaller descriptors."""

import numpy as np

from kvdiag.attribution.causes.base import Cause, Dose
from kvdiag.attribution.frame import Floats, Frame, Mask
from kvdiag.model.finding import Evidence
from kvdiag.model.missing import Missing

FACTOR = 1.5
"""Half as many again for the same bytes; block sizes come in steps of two, partly filled blocks add a few."""
LARGE_DESCRIPTOR = 65536.0
SMALL_DESCRIPTOR = 32768.0
"""Without a baseline, descriptors below 32 KiB in the mean are fragments: contiguous blocks of one layer are 64 KiB and
more, and at 8 KiB descriptors posting costs about as much as the transfer (vLLM #50913: 105 ms for 5,000 tokens)."""
MOST_SECONDS = 50e-6
"""What a descriptor costs at most beside its bytes. Measured with NIXL on busy processors, 4 KiB each: 4 us by copies
in memory, 26 to 37 us over TCP. A small model's handful of descriptors has few bytes in each; that costs nothing."""
LEAST_COST = 0.01
"""Fragments that cannot cost 1 % of mean TTFT are no cause of it."""
TOUCHED = 0.05
"""Share of the incident's requests with FACTOR times the usual number, where the median request has none of it."""


def dose(frame: Frame) -> Dose | Missing:
    """Return descriptors beyond what the baseline used for that many bytes (its own line: fixed part and per byte)."""
    descriptors, size = frame.number("descriptors"), frame.number("bytes")
    if descriptors is None or size is None:
        return Missing(f"requests have no {'descriptors' if descriptors is None else 'bytes'} column")
    used = (size > 0) & (descriptors > 0)
    if frame.standing:
        return _fragments(descriptors, size, used, float(frame.stages.ttft_s.mean()))
    base = used & ~frame.incident
    if not base.any() or not (used & frame.incident).any():
        return Missing("no transfer with bytes and descriptors in one of the periods")
    usual = _usual(descriptors, size, base)
    ratio = descriptors / usual
    incident = used & frame.incident
    median = float(np.median(ratio[incident]))
    touched = float((ratio[incident] > FACTOR).mean())
    before = float((ratio[base] > FACTOR).mean())
    return Dose(
        columns=(np.where(used & (ratio > FACTOR), descriptors - usual, 0.0),),
        ceilings=(np.inf,),
        own=True,
        moved=median > FACTOR or touched > before + TOUCHED,
        evidence=(
            Evidence(
                name="descriptors per request against the baseline's for the same bytes",
                value=f"median {median:.3g}×, {touched:.0%} of the requests above {FACTOR:g}×",
                source="requests, descriptors and bytes",
                threshold=f"median > {FACTOR:g}×, or > {before + TOUCHED:.0%} of the requests",
            ),
            Evidence(
                name="descriptors per request (median)",
                value=f"{np.median(descriptors[base]):,.0f} → {np.median(descriptors[incident]):,.0f}",
                source="requests, descriptors",
            ),
            Evidence(
                name="bytes per descriptor (mean)",
                value=f"{_mean_bytes(descriptors, size, base):,.0f} → "
                f"{_mean_bytes(descriptors, size, incident):,.0f} B",
                source="requests, bytes / descriptors",
            ),
        ),
    )


def surplus(descriptors: Floats, size: Floats) -> Floats:
    """Return the descriptors beyond one per LARGE_DESCRIPTOR bytes, where they are smaller than SMALL_DESCRIPTOR."""
    small = (size > 0) & (descriptors > 0) & (size < SMALL_DESCRIPTOR * descriptors)
    return np.where(small, descriptors - np.maximum(size / LARGE_DESCRIPTOR, 1.0), 0.0)


def _fragments(descriptors: Floats, size: Floats, used: Mask, ttft_s: float) -> Dose | Missing:
    """Return the surplus of descriptors, of which each costs MOST_SECONDS at most."""
    if not used.any():
        return Missing("no transfer with bytes and descriptors")
    fragments = surplus(descriptors, size)
    share = float((fragments[used] > 0).mean())
    most = MOST_SECONDS * float(fragments.mean())
    return Dose(
        columns=(fragments,),
        ceilings=(MOST_SECONDS,),
        own=True,
        moved=share > TOUCHED and most > LEAST_COST * ttft_s,
        evidence=(
            Evidence(
                name="bytes per descriptor (mean)",
                value=f"{_mean_bytes(descriptors, size, used):,.0f} B; {share:.0%} of the requests below "
                f"{SMALL_DESCRIPTOR:,.0f} B",
                source="requests, bytes / descriptors",
                threshold=f"> {TOUCHED:.0%} of the requests",
            ),
            Evidence(
                name="descriptors beyond what contiguous blocks need (mean)",
                value=f"{fragments.mean():,.1f} per request, {most * 1e3:.3g} ms at most",
                source=f"requests, descriptors less one per {LARGE_DESCRIPTOR:,.0f} B; {MOST_SECONDS * 1e6:g} us each",
                threshold=f"> {LEAST_COST:.0%} of mean TTFT",
            ),
        ),
    )


def _mean_bytes(descriptors: Floats, size: Floats, rows: Mask) -> float:
    return float(size[rows].sum() / descriptors[rows].sum())


def _usual(descriptors: Floats, size: Floats, base: Mask) -> Floats:
    """Return the baseline's number of descriptors for each request's bytes, at least one."""
    columns = np.column_stack([np.ones(len(size)), size / float(size[base].mean())])
    (fixed, per_byte), *_ = np.linalg.lstsq(columns[base], descriptors[base], rcond=None)
    usual: Floats = np.maximum(columns @ np.maximum([fixed, per_byte], 0.0), 1.0)
    return usual


CAUSE = Cause(
    id="layout.fragmented",
    stages=("post_s", "wire_s"),
    dose=dose,
    action="make KV blocks contiguous: larger block size, one layout for K and V and for both sides, fewer layers per "
    "descriptor; compare the engines' block size and tensor-parallel layout before and after",
)
