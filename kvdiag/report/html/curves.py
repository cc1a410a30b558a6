"""Vega-Lite specifications of what goes over time or over a size."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from kvdiag.report.html.charts import LABELS, SIZE_LABEL, Row, data, finish, log_seconds, log_ticks, series_colour
from kvdiag.report.html.theme import colours

SPAN_OPACITY = 0.13


def over_time(
    bins: Sequence[Row], points: Sequence[Row], spans: Sequence[Row], marks: Sequence[Row], unit: str
) -> dict[str, Any]:
    """Return median and p99 over time on a logarithmic axis: bins of at, p50, p99, requests; points of at, value."""
    lines = [
        {
            "at": row["at"],
            "value": row[name],
            "series": series,
            "text": row[f"{name}_text"],
            "requests": row["requests"],
        }
        for name, series in (("p50", "median"), ("p99", "p99"))
        for row in bins
    ]
    layers: list[Any] = [*_behind(spans, marks, unit)]
    axis = log_seconds([row["value"] for row in (*lines, *points)])
    y = alt.Y("value:Q", title=None, scale=alt.Scale(type="log", nice=False), axis=axis)
    if points:
        layers.append(
            alt.Chart(data(points)).mark_circle(size=12, color="var(--ink-2)", opacity=0.45).encode(x=_x(unit), y=y)
        )
    base = alt.Chart(data(lines)).encode(
        x=_x(unit),
        y=y,
        color=alt.Color(
            "series:N",
            scale=alt.Scale(domain=["median", "p99"], range=["var(--c1)", "var(--c6)"]),
            legend=alt.Legend(title=None),
        ),
        tooltip=[alt.Tooltip("series:N"), alt.Tooltip("text:N", title="value"), alt.Tooltip("requests:Q")],
    )
    layers += [base.mark_line(), base.mark_point(filled=True, size=18 if len(bins) <= 60 else 6, opacity=1)]
    return finish(alt.layer(*layers), height=230)


def counters_over_time(
    rows: Sequence[Row], names: Sequence[str], spans: Sequence[Row], marks: Sequence[Row], unit: str
) -> dict[str, Any]:
    """Return one line per series: rows of at, value, series."""
    base = alt.Chart(data(rows)).encode(
        x=_x(unit),
        y=alt.Y("value:Q", title=None, axis=alt.Axis(labelExpr=LABELS["count"], tickCount=5)),
        color=series_colour(names),
        tooltip=[alt.Tooltip("series:N"), alt.Tooltip("value:Q", format=",.4~g")],
    )
    return finish(alt.layer(*_behind(spans, marks, unit), base.mark_line()), height=180)


def by_size(
    rows: Sequence[Row], names: Sequence[str], unit: str, *, counted: str = "", log: bool = True
) -> dict[str, Any]:
    """Return lines over a size, or over what is `counted`, on a logarithmic axis: rows of x, value, series, low, high,
    text; low and high are the ends of an interval, None where there is none.
    """
    sizes = sorted({row["x"] for row in rows})
    narrow = sizes[:: max(1, -(-len(sizes) // 8))]
    x = alt.X(
        "x:Q",
        title=counted or None,
        scale=alt.Scale(type="log", base=2, nice=False, padding=14),
        axis=alt.Axis(values=narrow, labelExpr=LABELS["count"] if counted else SIZE_LABEL, labelOverlap="greedy"),
    )
    scale = alt.Scale(type="log", nice=False, padding=12) if log else alt.Scale(zero=True)
    ticks = {"values": log_ticks([row["value"] for row in rows])} if log else {"tickCount": 6}
    axis = alt.Axis(labelExpr=LABELS[unit], labelOverlap="greedy", **ticks)
    base = alt.Chart(data(rows)).encode(x=x, color=series_colour(names))
    lines = base.mark_line(point=alt.OverlayMarkDef(size=45, filled=True)).encode(
        y=alt.Y("value:Q", title=None, scale=scale, axis=axis),
        tooltip=[alt.Tooltip("series:N"), alt.Tooltip("size:N"), alt.Tooltip("text:N", title="value")],
    )
    bounded = [row for row in rows if row["low"] is not None]
    layers: list[Any] = [lines]
    if bounded:
        ranges = alt.Chart(data(bounded)).mark_rule(opacity=0.6)
        layers.insert(0, ranges.encode(x=x, color=series_colour(names), y=alt.Y("low:Q", title=None), y2="high:Q"))
    return finish(alt.layer(*layers), height=250)


def _x(unit: str) -> alt.X:
    return alt.X(
        "at:Q", title=f"{unit} since the first arrival", scale=alt.Scale(nice=False), axis=alt.Axis(grid=False)
    )


def _behind(spans: Sequence[Row], marks: Sequence[Row], unit: str) -> list[Any]:
    """Return what lies behind the curves: the incident's window (spans of at, end, label) and events (marks of at)."""
    layers: list[Any] = []
    if spans:
        base = alt.Chart(data(spans))
        layers.append(
            base.mark_rect(color="var(--c6)", opacity=SPAN_OPACITY).encode(x=_x(unit), x2="end:Q", tooltip="label:N")
        )
        layers.append(
            base.mark_text(align="left", baseline="top", dx=5, dy=3, fontSize=11.5, color="var(--ink-2)").encode(
                x=_x(unit), y=alt.value(0), text="label:N"
            )
        )
    if marks:
        base = alt.Chart(data(marks)).encode(
            x=_x(unit),
            tooltip=[alt.Tooltip("kind:N"), alt.Tooltip("node:N"), alt.Tooltip("times:N"), alt.Tooltip("detail:N")],
        )
        layers.append(base.mark_rule(strokeDash=[2, 2], color=colours(4)[3], strokeWidth=1.2))
        layers.append(
            base.mark_point(shape="triangle-down", filled=True, size=60, color=colours(4)[3], opacity=1).encode(
                y=alt.value(-3)
            )
        )
    return layers
