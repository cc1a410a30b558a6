"""How far the clocks of the two sides are apart, as their spans show it: no KV cache before its prefill ended."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kvdiag.model.record import HandleTransfer, Key, RequestPiece

Pieces = list[RequestPiece | HandleTransfer]
LEAST_REQUESTS = 10
EARLY_S = 0.005
"""Clocks in step show no cache earlier than that before its prefill's end ..."""
LEAST_EARLY = 0.02
"""... in more than one of fifty requests: a few such spans are spans that are wrong."""
LATE_S = 0.25
"""Between a prefill's end and the decode engine's first sight of the request lies a router's millisecond, not more."""
_TIMES = ("start_s", "setup_end_s", "admit_end_s", "kv_present_s", "first_token_s")


def in_step(pieces: Pieces, notes: list[str]) -> Pieces:
    """Return the pieces with each decode side's clock put forward where it shows caches before their prefill's end.

    A clock that is ahead looks like a slow way between the sides: that is only noted.
    """
    ends: dict[Key, float] = {}
    for one in pieces:
        if isinstance(one, RequestPiece) and one.side == "prefill" and one.prefill_end_s is not None:
            ends |= {key: max(ends.get(key, -np.inf), one.prefill_end_s) for key in one.keys}
    waits: defaultdict[str, list[float]] = defaultdict(list)
    gaps: defaultdict[str, list[float]] = defaultdict(list)
    for one in pieces:
        if not isinstance(one, RequestPiece) or one.side != "decode" or one.node is None:
            continue
        end_s = next((ends[key] for key in one.keys if key in ends), None)
        if end_s is not None and one.kv_present_s is not None:
            waits[one.node].append(one.kv_present_s - end_s)
        if end_s is not None and one.start_s is not None:
            gaps[one.node].append(one.start_s - end_s)
    behind = {node: shift for node, found in waits.items() if (shift := _behind(found)) > 0}
    for node, shift in behind.items():
        notes.append(
            f"{node}: its clock is at least {shift:.3f} s behind the prefill side's, for it shows KV caches before "
            "their prefill ended; put forward by that, so kv_wait_s and ttft_s are too short by the quickest transfer"
        )
    for node, found in gaps.items():
        if node not in behind and len(found) >= LEAST_REQUESTS and (least := min(found)) > LATE_S:
            notes.append(
                f"{node}: sees every request at least {least:.3f} s after its prefill ended: a slow router, or a clock "
                "that is ahead; kv_wait_s and ttft_s are as uncertain"
            )
    return [_forward(one, behind) for one in pieces] if behind else pieces


def _behind(waits: Sequence[float]) -> float:
    """Return by how many seconds the clock must be put forward, 0 where it may be right."""
    early = np.array(waits) < -EARLY_S
    if len(waits) < LEAST_REQUESTS or early.mean() <= LEAST_EARLY:
        return 0.0
    return float(-np.quantile(waits, LEAST_EARLY / 2))


def _forward(one: RequestPiece | HandleTransfer, behind: dict[str, float]) -> RequestPiece | HandleTransfer:
    if one.node not in behind:
        return one
    shift = behind[one.node]
    if isinstance(one, HandleTransfer):
        return one if one.start_s is None else replace(one, start_s=one.start_s + shift)
    times = {name: getattr(one, name) + shift for name in _TIMES if getattr(one, name) is not None}
    return replace(one, **times)
