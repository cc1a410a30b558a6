"""A trace bundle as blocks: which pair is slow, distributions, and what happened when."""

import math
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import groupby

from kvdiag.model.diagnosis import Diagnosis
from kvdiag.model.missing import Missing
from kvdiag.model.overview import CounterChart, EventMark, Overview, PairCell, PairMatrix, Quantiles, Timeline
from kvdiag.report.html import charts, curves
from kvdiag.report.html.blocks import Block, Cell, Chart, Empty, Lines, Section, cell, table
from kvdiag.report.html.units import change, count, duration, number

MOST_PAIR_ROWS = 60
MOST_SIDE_BY_SIDE = 8
"""Decode nodes; matrices with more take the whole width."""
LEAST_S = 1e-6
"""Shorter means count as this when two of them are compared."""


def sections(overview: Overview, diagnosis: Diagnosis) -> tuple[Section, ...]:
    """Return the sections that need single requests: pairs, distributions, timelines."""
    return (
        Section(
            title="Prefill × decode pairs",
            blocks=_pairs(overview.pairs),
            lead="Rows are prefill nodes, columns decode nodes. The KV hand-over is everything from prefill's end "
            "until the KV cache is present.",
        ),
        Section(
            title="Latency distributions",
            blocks=tuple(
                _distribution(name, list(found)) for name, found in groupby(overview.distributions, _quantity)
            ),
            lead="Share of requests at or below a time, on a logarithmic axis. Dots mark p50 and p99 of each period.",
        ),
        Section(title="Timelines", blocks=_timelines(overview, diagnosis), lead=_when(overview)),
    )


def absent_sections(reason: str) -> tuple[Section, ...]:
    """Return the same sections where the input holds no single requests, with the reason."""
    empty = (Empty(title="Not observable here", reason=reason),)
    return (Section(title="Pairs, distributions and timelines", blocks=empty),)


def binned(overview: Overview) -> tuple[Block, ...]:
    """Return what was summed up for drawing."""
    return (Lines(title="Summed up for drawing", lines=overview.binned),)


def _quantity(one: Quantiles) -> str:
    return one.quantity


def _pairs(pairs: PairMatrix | Missing) -> tuple[Block, ...]:
    if isinstance(pairs, Missing):
        return (Empty(title="Pairs cannot be told apart", reason=str(pairs)),)
    named = f"mean {pairs.quantity}" if pairs.quantity == "TTFT" else f"mean {pairs.quantity} time"
    left = f" {count(pairs.left_out, 'pair')} of further nodes left out." if pairs.left_out else ""
    least_px = 140 + 44 * len(pairs.decode_nodes)
    wide = len(pairs.decode_nodes) > MOST_SIDE_BY_SIDE
    blocks: list[Block] = []
    known = [one for one in pairs.cells if one.mean_s is not None]
    compared = [one for one in known if one.baseline_mean_s is not None]
    if known:
        worst = max(known, key=lambda one: one.mean_s or 0.0)
        said = f"slowest: {worst.prefill} → {worst.decode} with {duration(worst.mean_s)}"
        title = f"{named}, incident" if compared else named
        spec = _heat(pairs, known, "mean", lambda one: one.mean_s or 0.0, diverging=False)
        blocks.append(
            Chart(
                title=title[:1].upper() + title[1:],
                summary=said,
                spec=spec,
                note=f"{said}.{left}",
                least_px=least_px,
                wide=wide,
            )
        )
    if compared:
        worst = max(compared, key=_moved)
        said = f"largest rise: {worst.prefill} → {worst.decode}, {_times(_moved(worst))}"
        spec = _heat(pairs, compared, "times", _moved, diverging=True)
        blocks.append(
            Chart(
                title="Change against the baseline",
                summary=said,
                spec=spec,
                note=f"{said}.",
                least_px=least_px,
                wide=wide,
            )
        )
    return (*blocks, _pair_table(pairs, named))


def _heat(
    pairs: PairMatrix, cells: list[PairCell], title: str, value_of: Callable[[PairCell], float], *, diverging: bool
) -> dict[str, object]:
    values = [value_of(one) for one in cells]
    low, high = min(values), max(values)
    rows = []
    for one, value in zip(cells, values, strict=True):
        reach = max(abs(low), abs(high), 1e-12)
        dark = abs(value) > 0.55 * reach if diverging else value < low + 0.5 * (high - low)
        rows.append(
            {
                "prefill": one.prefill,
                "decode": one.decode,
                "pair": f"{one.prefill} → {one.decode}",
                "value": value,
                "text": _times(value) if diverging else duration(value),
                "dark": bool(dark),
                "now": duration(one.mean_s),
                "before": duration(one.baseline_mean_s),
                "requests": f"{one.requests:,} (baseline {one.baseline_requests:,})",
                "p99": duration(one.ttft_p99_s),
            }
        )
    return charts.heat(rows, pairs.prefill_nodes, pairs.decode_nodes, title, diverging=diverging)


def _moved(one: PairCell) -> float:
    """Return how many powers of two the pair is slower than its own baseline."""
    return math.log2(max(one.mean_s or 0.0, LEAST_S) / max(one.baseline_mean_s or 0.0, LEAST_S))


def _times(power: float) -> str:
    return f"× {number(2.0**power, 2)}"


def _pair_table(pairs: PairMatrix, named: str) -> Block:
    ordered = sorted(pairs.cells, key=lambda one: (-(one.mean_s or 0.0), one.prefill, one.decode))
    rows = []
    for one in ordered[:MOST_PAIR_ROWS]:
        excess = None if one.mean_s is None or one.baseline_mean_s is None else one.mean_s - one.baseline_mean_s
        rows.append(
            (
                Cell(f"{one.prefill} → {one.decode}", strong=True),
                cell(duration(one.mean_s), one.mean_s),
                cell(duration(one.baseline_mean_s), one.baseline_mean_s),
                cell(change(excess), excess),
                cell(duration(one.ttft_p99_s), one.ttft_p99_s),
                cell(f"{one.requests:,}", one.requests),
                cell(f"{one.baseline_requests:,}", one.baseline_requests),
            )
        )
    heads = ("pair", f"#{named}", "#baseline", "#change", "#TTFT p99", "#requests", "#in the baseline")
    left = len(ordered) - len(rows)
    return table("Pairs, slowest first", heads, rows, f"{left} faster pairs left out." if left else "")


def _distribution(quantity: str, found: list[Quantiles]) -> Chart:
    lines, marks = [], []
    slowest = max(found, key=lambda one: one.p99_s)
    for one in found:
        points = zip(one.value_s, one.share, strict=True)
        lines += [{"period": one.period, "value": v, "share": s, "place": n} for n, (v, s) in enumerate(points)]
        side = "right" if one is slowest else "left"
        for share, label, value in ((0.5, "p50", one.p50_s), (0.99, "p99", one.p99_s)):
            words = f"{label} {duration(value)}"
            marks.append({"period": one.period, "share": share, "label": label, "value": value, "side": side,
                          "words": words, "text": duration(value)})  # fmt: skip
    said = "; ".join(
        f"{one.period}: p50 {duration(one.p50_s)}, p99 {duration(one.p99_s)}, {count(one.count, 'request')}"
        for one in found
    )
    floor = [f"{one.period}: {one.below_floor:,} of {one.count:,}" for one in found if one.below_floor]
    note = f"{said}." + (f" Below {duration(found[0].floor_s)} and drawn there: {'; '.join(floor)}." if floor else "")
    return Chart(title=quantity, summary=said, spec=charts.distribution(lines, marks), note=note)


def _when(overview: Overview) -> str:
    try:
        start = datetime.fromtimestamp(overview.first_arrival_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        start = f"{overview.first_arrival_s:g} s on the recording's own clock"
    return f"First arrival: {start}. The shaded stretch is the incident; triangles and dotted lines are events."


def _timelines(overview: Overview, diagnosis: Diagnosis) -> tuple[Block, ...]:
    scale, unit = _time_unit(overview.length_s)
    verdict = diagnosis.verdict
    label = f"incident: {verdict.cause}" if verdict.cause else "incident"
    spans = [
        {"at": one.start_s / scale, "end": one.end_s / scale, "label": label}
        for one in overview.spans
        if one.period == "incident"
    ]
    inside = [one for one in overview.events if 0 <= one.at_s <= overview.length_s]
    marks = [
        {
            "at": one.at_s / scale,
            "kind": one.kind,
            "node": one.node,
            "times": f"{one.count}",
            "detail": one.detail[:200],
        }
        for one in inside
    ]
    blocks: list[Block] = [_timeline(one, spans, marks, scale, unit) for one in overview.timelines]
    blocks += [_counter(one, spans, marks, scale, unit) for one in overview.counters]
    if overview.counters_missing is not None:
        blocks.append(
            Empty(title="Counters of the verdict", reason=f"not observable here: {overview.counters_missing}")
        )
    if overview.events:
        blocks.append(_event_table(overview.events, scale, unit))
    else:
        blocks.append(Empty(title="Events", reason="not observable here: the recording has none"))
    return tuple(blocks)


def _time_unit(length_s: float) -> tuple[float, str]:
    if length_s > 3 * 3600:
        return 3600.0, "hours"
    return (60.0, "minutes") if length_s > 300 else (1.0, "seconds")


def _timeline(
    one: Timeline, spans: list[dict[str, object]], marks: list[dict[str, object]], scale: float, unit: str
) -> Chart:
    rows: list[dict[str, object]] = [
        {
            "at": item.middle_s / scale,
            "p50": item.p50_s,
            "p99": item.p99_s,
            "p50_text": duration(item.p50_s),
            "p99_text": duration(item.p99_s),
            "requests": item.requests,
        }
        for item in one.bins
    ]
    points = [{"at": at / scale, "value": value} for at, value in one.points]
    worst = max(one.bins, key=lambda item: item.p99_s)
    said = f"{one.quantity} over {len(one.bins)} bins; highest p99 {duration(worst.p99_s)} at "
    said += f"{number(worst.middle_s / scale)} {unit}"
    note = "Grey dots are single requests." if points else ""
    spec = curves.over_time(rows, points, spans, marks, unit)
    return Chart(title=f"{one.quantity} by arrival", summary=said, spec=spec, note=note, wide=True)


def _counter(
    one: CounterChart, spans: list[dict[str, object]], marks: list[dict[str, object]], scale: float, unit: str
) -> Chart:
    rows: list[dict[str, object]] = [
        {"at": at / scale, "value": value, "series": curve.series}
        for curve in one.curves
        for at, value in zip(curve.time_s, curve.values, strict=True)
    ]
    names = [curve.series for curve in one.curves]
    suffix = " per second" if one.counts else ""
    title = f"{one.metric}{suffix}" + (f" ({one.unit})" if one.unit not in ("", "1") else "")
    note = f"{count(one.left_out, 'further series', 'further series')} that moved less." if one.left_out else ""
    peaks = ", ".join(f"{curve.series} up to {number(max(curve.values))}" for curve in one.curves)
    spec = curves.counters_over_time(rows, names, spans, marks, unit)
    return Chart(title=title, summary=f"{title}: {peaks}", spec=spec, note=note, wide=True)


def _event_table(events: tuple[EventMark, ...], scale: float, unit: str) -> Block:
    rows = [
        (
            cell(f"{number(one.at_s / scale, 4)} {unit}", one.at_s),
            Cell(one.kind, strong=True),
            cell(one.node or "–"),
            cell(f"{one.count:,}", one.count),
            cell(one.detail),
        )
        for one in events
    ]
    return table("Events", ("#time", "event", "node", "#times", "detail"), rows)
