"""Which prefill → decode pair is slow: means by pair, before and during the incident."""

import itertools
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from kvdiag.model.bundle import Labels, RequestColumns
from kvdiag.model.missing import Missing
from kvdiag.model.overview import PairCell, PairMatrix

Floats = NDArray[np.float64]

MOST_NODES = 32
"""Of each side; those with the slowest requests are kept, for a square that a screen can show."""


def pair_matrix(
    requests: RequestColumns, quantities: Mapping[str, Floats], incident: NDArray[np.bool_] | None
) -> PairMatrix | Missing:
    """Return means of the last but TTFT's quantity by pair: the KV hand-over, or TTFT itself where no stage is known.

    `incident` None: the whole period, without a baseline. Missing where the rows do not name both nodes.
    """
    sides = [requests.labels.get(name) for name in ("prefill_node", "decode_node")]
    if sides[0] is None or sides[1] is None:
        names = ("prefill_node", "decode_node")
        absent = " and ".join(name for name, one in zip(names, sides, strict=True) if one is None)
        return Missing(f"the requests have no {absent}")
    ttft, (name, values) = quantities["TTFT"], list(quantities.items())[1 if len(quantities) > 1 else 0]
    placed = (sides[0].codes >= 0) & (sides[1].codes >= 0) & np.isfinite(values)
    if not placed.any():
        return Missing("no request names both its prefill and its decode node")
    now = placed if incident is None else placed & incident
    before = np.zeros_like(placed) if incident is None else placed & ~incident
    kept = [_slowest(one, values, now) for one in (sides[0], sides[1])]
    width = len(sides[1].names)
    pair = np.where(placed, sides[0].codes.astype(np.int64) * width + sides[1].codes, -1)
    order = np.argsort(pair, kind="stable")
    found, starts = np.unique(pair[order], return_index=True)
    rows = dict(zip(found.tolist(), np.split(order, starts[1:]), strict=True))
    rows.pop(-1, None)
    cells = []
    for p, d in itertools.product(*kept):
        if p * width + d in rows:
            own = rows[p * width + d]
            here, then = own[now[own]], own[before[own]]
            cells.append(
                PairCell(
                    prefill=sides[0].names[p],
                    decode=sides[1].names[d],
                    requests=len(here),
                    mean_s=float(values[here].mean()) if len(here) else None,
                    ttft_p99_s=float(np.quantile(ttft[here], 0.99)) if len(here) else None,
                    baseline_requests=len(then),
                    baseline_mean_s=float(values[then].mean()) if len(then) else None,
                )
            )
    return PairMatrix(
        quantity=name,
        prefill_nodes=tuple(sides[0].names[p] for p in kept[0]),
        decode_nodes=tuple(sides[1].names[d] for d in kept[1]),
        cells=tuple(cells),
        left_out=len(rows) - len(cells),
    )


def _slowest(side: Labels, values: Floats, rows: NDArray[np.bool_]) -> list[int]:
    """Return the codes of at most MOST_NODES nodes by the largest mean, in the order of their names."""
    size = len(side.names)
    count = np.bincount(side.codes[rows], minlength=size)
    mean = np.bincount(side.codes[rows], weights=values[rows], minlength=size) / np.maximum(count, 1)
    slowest = np.argsort(-mean, kind="stable")[:MOST_NODES].tolist()
    return sorted(slowest, key=lambda code: _natural(side.names[code]))


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """Sort node10 behind node9."""
    parts: list[tuple[int, str]] = []
    digits = ""
    for letter in name + "\0":
        if letter.isdecimal():
            digits += letter
            continue
        if digits:
            parts.append((int(digits), ""))
            digits = ""
        parts.append((-1, letter))
    return tuple(parts)
