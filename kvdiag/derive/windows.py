"""Request rows of which each is the mean over a window of time, from engines' histograms alone.

Sums and counts of a histogram are exact and unsampled; buckets are not looked at. A row is one pair of nodes in one
window: the prefill side's means, the decode side's, and their sum as TTFT.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kvdiag.derive.counters import unwrapped
from kvdiag.errors import UndeterminedError
from kvdiag.model.bundle import Bundle, CounterSeries, Labels, MetricInfo, RequestColumns
from kvdiag.model.transfer import STAGES
from kvdiag.model.windows import HistogramSeries

Floats = NDArray[np.float64]

LEAST_STEP_S = 5.0
"""Shorter windows hold too few requests for a mean."""
TOKENS = ("prompt_tokens", "uncached_tokens", "batch_tokens", "bytes", "descriptors")
INNER = ("wire_s", "post_s")
"""Parts of kv_wait_s; what they leave of it is pre_transfer_s."""


def window_bundle(
    origin: str,
    histograms: Sequence[HistogramSeries],
    series: Sequence[CounterSeries] = (),
    metrics: Mapping[str, MetricInfo] | None = None,
    notes: Sequence[str] = (),
) -> Bundle:
    """Return a bundle whose rows are means over windows; UndeterminedError where no stage of TTFT is among them."""
    known = [one for one in histograms if len(one.time_s) >= 2]
    if not any(one.quantity in STAGES for one in known):
        raise UndeterminedError(
            f"{origin}: no histogram of a stage of TTFT (queue, prefill, KV wait, transfer) has two samples in that "
            "period; check --start and --end, and that the engines' metrics are scraped"
        )
    step = max(LEAST_STEP_S, *(float(np.median(np.diff(one.time_s))) for one in known))
    begin, end = min(float(one.time_s[0]) for one in known), max(float(one.time_s[-1]) for one in known)
    edges: Floats = begin + step * np.arange(max(int((end - begin) / step + 1e-6), 1) + 1.0, dtype=np.float64)
    sides = [sorted({name for one in known if (name := getattr(one, side)) is not None}) for side in _SIDES]
    cells = _cells(known, edges, sides)
    stages = [name for name in cells if name in STAGES]
    requests = _requests(known, edges, sides)
    whole = np.sum([cells[name] for name in stages], axis=0)
    if "ttft_s" not in cells:
        cells["ttft_s"] = whole
    used = np.isfinite(whole) & np.isfinite(cells["ttft_s"]) & (requests > 0)
    if not used.any():
        raise UndeterminedError(
            f"{origin}: no window of {step:g} s in which every stage was observed; give a longer period"
        )
    p, d, w = np.nonzero(used)
    order = np.argsort(w, kind="stable")
    p, d, w = p[order], d[order], w[order]
    numbers = {name: values[p, d, w] for name, values in cells.items()}
    numbers["arrival_s"] = edges[w]
    labels = {
        f"{side}": Labels(tuple(names), index.astype(np.int32))
        for side, names, index in zip(_SIDES, sides, (p, d), strict=True)
        if names
    }
    total = float(requests[used].sum())
    told = (
        *notes,
        f"histograms only: each of the {len(w)} rows is the mean over {step:g} s at one pair of nodes, of about "
        f"{total / len(w):.3g} requests; what varies within a window cannot be attributed",
    )
    return Bundle(
        origin=origin,
        requests=RequestColumns(
            ids=[f"window {index}" for index in range(len(w))],
            numbers={name: values for name, values in numbers.items() if not np.isnan(values).all()},
            labels=labels,
        ),
        series=(*series, *_counted(known, {one.metric for one in series})),
        metrics=metrics or {},
        roles={name: side.removesuffix("_node") for side, names in zip(_SIDES, sides, strict=True) for name in names},
        sampling=min(1.0, len(w) / max(total, 1.0)),
        notes=told,
        window_s=step,
    )


_SIDES = ("prefill_node", "decode_node")


def _cells(known: Sequence[HistogramSeries], edges: Floats, sides: list[list[str]]) -> dict[str, Floats]:
    """Return by column the mean of each (prefill node, decode node, window), NaN where nothing was observed."""
    shape = (max(len(sides[0]), 1), max(len(sides[1]), 1), len(edges) - 1)
    cells: dict[str, Floats] = {}
    for name in (*STAGES, "ttft_s", *TOKENS):
        chosen = [one for one in known if one.quantity == name]
        if chosen:
            total, count = _placed(chosen, edges, sides, shape)
            with np.errstate(divide="ignore", invalid="ignore"):
                cells[name] = np.where(count > 0, total / count, np.nan)
    inner = [name for name in INNER if name in cells]
    if "kv_wait_s" in cells and inner:
        parts = np.sum([cells[name] for name in inner], axis=0)
        cells["pre_transfer_s"] = np.maximum(cells.pop("kv_wait_s") - parts, 0.0)
    return cells


def _placed(
    chosen: Sequence[HistogramSeries], edges: Floats, sides: list[list[str]], shape: tuple[int, int, int]
) -> tuple[Floats, Floats]:
    """Add up differences of sums and counts where they belong; a series without a side counts for all of it."""
    total, count = np.zeros(shape), np.zeros(shape)
    for one in chosen:
        at = tuple(
            slice(None) if (name := getattr(one, side)) is None else names.index(name)
            for side, names in zip(_SIDES, sides, strict=True)
        )
        total[at] += _differences(one.time_s, one.total, edges)
        count[at] += _differences(one.time_s, one.count, edges)
    return total, count


def _differences(time_s: Floats, value: Floats, edges: Floats) -> Floats:
    """Return what a running number grew by in each window; zero outside of what was recorded."""
    differences: Floats = np.diff(np.interp(edges, time_s, unwrapped(value)))
    return differences


def _requests(known: Sequence[HistogramSeries], edges: Floats, sides: list[list[str]]) -> Floats:
    """Return about how many requests each cell stands for."""
    shape = (max(len(sides[0]), 1), max(len(sides[1]), 1), len(edges) - 1)
    for name in ("ttft_s", "prefill_s", "queue_s", "kv_wait_s", "wire_s"):
        chosen = [one for one in known if one.quantity == name]
        if not chosen:
            continue
        count = _placed(chosen, edges, sides, shape)[1]
        for axis, side in enumerate(_SIDES):
            if all(getattr(one, side) is None for one in chosen):
                count = count / shape[axis]
        return count
    return np.zeros(shape)


def _counted(known: Sequence[HistogramSeries], present: set[str]) -> list[CounterSeries]:
    """Return arrivals and computed tokens of the prefill nodes as counters, where no counter of them was recorded."""
    found = []
    for metric, quantities, part in (
        ("engine.arrivals", ("prefill_s", "queue_s", "ttft_s"), "count"),
        ("engine.prefill_tokens", ("uncached_tokens",), "total"),
    ):
        chosen = next((all_ for name in quantities if (all_ := [o for o in known if o.quantity == name])), [])
        if metric in present:
            continue
        for node in sorted({one.prefill_node for one in chosen if one.prefill_node is not None}):
            own = [one for one in chosen if one.prefill_node == node]
            times = np.unique(np.concatenate([one.time_s for one in own]))
            value = np.sum([np.interp(times, one.time_s, unwrapped(getattr(one, part))) for one in own], axis=0)
            found.append(CounterSeries(node=node, device=None, metric=metric, time_s=times, value=value))
    return found
