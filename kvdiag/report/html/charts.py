"""Vega-Lite specifications, made with Altair: data in, dictionaries out.

Field names, titles of axes and expressions are fixed here; what was read from inputs is only ever data.
"""

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from kvdiag.report.html.theme import PERIOD_COLOURS, PERIODS, colours

Row = dict[str, Any]

DURATION_LABEL = (
    "datum.value == 0 ? '0' : abs(datum.value) >= 1 ? format(datum.value, '~g') + ' s' : abs(datum.value) >= 0.001 ? "
    "format(datum.value * 1e3, '~g') + ' ms' : format(datum.value * 1e6, '~g') + ' µs'"
)
SIZE_LABEL = (
    "datum.value >= 1073741824 ? format(datum.value / 1073741824, '~g') + ' GiB' : datum.value >= 1048576 ? "
    "format(datum.value / 1048576, '~g') + ' MiB' : datum.value >= 1024 ? format(datum.value / 1024, '~g') + ' KiB' : "
    "format(datum.value, '~g') + ' B'"
)
BITS_LABEL = (
    "datum.value == 0 ? '0' : datum.value >= 1e9 ? format(datum.value / 1e9, '~g') + ' Gb/s' : datum.value >= 1e6 ? "
    "format(datum.value / 1e6, '~g') + ' Mb/s' : format(datum.value / 1e3, '~g') + ' kb/s'"
)
PERCENT_LABEL = "format(datum.value * 100, '~g') + ' %'"
COUNT_LABEL = "abs(datum.value) >= 1e4 ? format(datum.value, '~s') : format(datum.value, '~g')"
LABELS = {
    "seconds": DURATION_LABEL,
    "bytes": SIZE_LABEL,
    "bits_per_second": BITS_LABEL,
    "ratio": PERCENT_LABEL,
    "count": COUNT_LABEL,
}
BAR_PX = 26
MOST_TICKS = 9
LEAST_TICK, MOST_TICK = 1e-12, 1e18
"""No time, size or rate is outside; what is, is drawn without a tick."""


def data(rows: Sequence[Row]) -> alt.InlineData:
    """Return rows as inline data; numbers keep six digits, and what is not finite becomes null, as JSON wants it."""
    short = [{key: _short(value) for key, value in row.items()} for row in rows]
    return alt.InlineData(values=short)


def finish(chart: Any, height: int | None = None) -> dict[str, Any]:
    """Return the specification; it fills its container, in width at least."""
    sized = chart.properties(width="container")
    if height is not None:
        sized = sized.properties(height=height)
    found: dict[str, Any] = sized.to_dict()
    for left_to_the_page in ("config", "$schema"):
        found.pop(left_to_the_page, None)
    return found


def stacked(rows: Sequence[Row], bars: Sequence[str], parts: Sequence[str]) -> dict[str, Any]:
    """Return horizontal bars of `parts` (seconds each): rows of bar, part, value, text."""
    order = {part: number for number, part in enumerate(parts)}
    chart = (
        alt.Chart(data([row | {"place": order[row["part"]]} for row in rows]))
        .mark_bar(stroke="var(--paper)", strokeWidth=1.5)
        .encode(
            x=alt.X("value:Q", title=None, axis=alt.Axis(labelExpr=DURATION_LABEL, tickCount=6)),
            y=alt.Y("bar:N", sort=list(bars), title=None, axis=_names()),
            color=alt.Color(
                "part:N",
                scale=alt.Scale(domain=list(parts), range=[*colours(len(parts) - 1), "var(--c-rest)"]),
                legend=alt.Legend(title=None, columns=3),
            ),
            order=alt.Order("place:Q"),
            tooltip=[alt.Tooltip("bar:N"), alt.Tooltip("part:N", title="stage"), alt.Tooltip("text:N", title="mean")],
        )
    )
    return finish(chart, height=2 * BAR_PX * len(bars))


def intervals(rows: Sequence[Row], unit: str, colour: str = "var(--c1)") -> dict[str, Any]:
    """Return bars with their intervals: rows of name, value, low, high, text; the first on top, 0 always in view."""
    names = [row["name"] for row in rows]
    base = alt.Chart(data(rows)).encode(
        y=alt.Y("name:N", sort=names, title=None, axis=_names()),
        tooltip=[alt.Tooltip("name:N"), alt.Tooltip("text:N", title="value (interval)")],
    )
    axis = alt.Axis(labelExpr=LABELS[unit], tickCount=6)
    bars = base.mark_bar(height={"band": 0.55}, color=colour).encode(x=alt.X("value:Q", title=None, axis=axis))
    ends = base.mark_rule(strokeWidth=1.5, color="var(--ink)").encode(x=alt.X("low:Q"), x2="high:Q")
    caps = [
        base.mark_tick(size=9, thickness=1.5, color="var(--ink)").encode(x=alt.X(f"{end}:Q")) for end in ("low", "high")
    ]
    return finish(alt.layer(bars, ends, *caps), height=BAR_PX * max(len(rows), 2))


def grouped(rows: Sequence[Row], groups: Sequence[str], unit: str, *, log: bool = False) -> dict[str, Any]:
    """Return a bar for every series within every name: rows of name, series, value, text."""
    names = list(dict.fromkeys(row["name"] for row in rows))
    base = alt.Chart(data(rows))
    chart = base.mark_point(filled=True, size=90, opacity=1) if log else base.mark_bar()
    encoded = chart.encode(
        x=alt.X(
            "value:Q",
            title=None,
            scale=alt.Scale(type="log", nice=True) if log else alt.Scale(),
            axis=alt.Axis(labelExpr=LABELS[unit], tickCount=6),
        ),
        y=alt.Y("name:N", sort=names, title=None, axis=_names(grid=log)),
        yOffset=alt.YOffset("series:N", sort=list(groups)),
        color=series_colour(groups),
        tooltip=[alt.Tooltip("name:N"), alt.Tooltip("series:N"), alt.Tooltip("text:N", title="value")],
    )
    return finish(encoded, height=max(2, len(names)) * BAR_PX * max(1, round(len(groups) * 0.7)))


def distribution(curves: Sequence[Row], marks: Sequence[Row]) -> dict[str, Any]:
    """Return cumulative shares over a logarithmic axis of seconds: curves of period, value, share; marks with label."""
    values = [row["value"] for row in curves]
    low, high = min(values), max(values)
    # Room for the last label on the right.
    scale = alt.Scale(type="log", nice=False, domain=[low, max(high * (high / low) ** 0.2, low * 1.01)])
    x = alt.X("value:Q", title=None, scale=scale, axis=log_seconds(values))
    y = alt.Y("share:Q", title=None, axis=alt.Axis(format="%", tickCount=5))
    periods = [name for name in PERIODS if any(row["period"] == name for row in curves)]
    chosen = [PERIOD_COLOURS[PERIODS.index(name)] for name in periods]
    legend = alt.Legend(title=None, symbolType="stroke") if len(periods) > 1 else None
    colour = alt.Color("period:N", scale=alt.Scale(domain=periods, range=chosen), legend=legend)
    patterns = [[6, 3] if name == "baseline" else [1, 0] for name in periods]
    dash = alt.StrokeDash("period:N", scale=alt.Scale(domain=periods, range=patterns), legend=legend)
    lines = (
        alt.Chart(data(curves))
        .mark_line(interpolate="step-after", clip=True)
        .encode(x=x, y=y, color=colour, strokeDash=dash, order=alt.Order("place:Q"))
    )
    at = alt.Chart(data(marks)).encode(x=alt.X("value:Q"), color=colour)
    rules = at.mark_rule(strokeDash=[3, 3], opacity=0.75).encode(y=alt.Y("share:Q"), y2=alt.datum(0))
    dots = at.mark_point(filled=True, size=70, opacity=1).encode(
        y=alt.Y("share:Q"),
        tooltip=[
            alt.Tooltip("period:N"),
            alt.Tooltip("label:N", title="quantile"),
            alt.Tooltip("text:N", title="value"),
        ],
    )
    text = at.encode(y=alt.Y("share:Q"), text="words:N")
    left = text.mark_text(align="right", dx=-7, dy=-8).transform_filter("datum.side == 'left'")
    right = text.mark_text(align="left", dx=7, dy=11).transform_filter("datum.side == 'right'")
    sides = {row["side"] for row in marks}
    words = [layer for side, layer in (("left", left), ("right", right)) if side in sides]
    return finish(alt.layer(lines, rules, dots, *words), height=250)


def heat(
    cells: Sequence[Row], prefill: Sequence[str], decode: Sequence[str], title: str, *, diverging: bool
) -> dict[str, Any]:
    """Return a matrix of pairs: cells of prefill, decode, value, text, dark (whether its colour is), and tooltips.

    `diverging`: values are powers of two, 0 in the middle.
    """
    angle = -40 if len(decode) > 6 or max(map(len, decode), default=0) > 14 else 0
    base = alt.Chart(data(cells)).encode(
        x=alt.X(
            "decode:N",
            sort=list(decode),
            title="decode node",
            axis=alt.Axis(labelAngle=angle, domain=False, ticks=False),
        ),
        y=alt.Y("prefill:N", sort=list(prefill), title=None, axis=alt.Axis(domain=False, ticks=False)),
        tooltip=[
            alt.Tooltip("pair:N"),
            alt.Tooltip("now:N", title="mean"),
            alt.Tooltip("before:N", title="baseline mean"),
            alt.Tooltip("requests:N"),
            alt.Tooltip("p99:N", title="TTFT p99"),
        ],
    )
    values = [row["value"] for row in cells]
    if diverging:
        reach = max(max((abs(value) for value in values), default=1.0), 0.1)
        scale = alt.Scale(scheme="blueorange", domain=[-reach, reach], domainMid=0)
        labels = "'× ' + format(pow(2, datum.value), '.2~r')"
    else:
        scale, labels = alt.Scale(scheme="cividis"), DURATION_LABEL.replace("~g", ".3~r")
    legend = alt.Legend(
        title=title,
        orient="right",
        direction="vertical",
        labelExpr=labels,
        gradientLength=100,
        gradientThickness=10,
        tickCount=4,
        offset=10,
    )
    boxes = base.mark_rect(stroke="var(--paper)", strokeWidth=2).encode(
        color=alt.Color("value:Q", scale=scale, legend=legend)
    )
    layers: list[Any] = [boxes]
    if len(decode) <= 12 and len(prefill) <= 24:
        text = base.mark_text(fontSize=11.5).encode(
            text="text:N",
            color=alt.condition("datum.dark", alt.value("#ffffff"), alt.value("#111111")),
        )
        layers.append(text)
    return finish(alt.layer(*layers), height=max(120, min(34, max(16, 640 // max(len(prefill), 1))) * len(prefill)))


def log_ticks(values: Sequence[float]) -> list[float]:
    """Return 1, 2 and 5 times powers of ten between the smallest and the largest value, or the powers alone."""
    usable = [value for value in values if LEAST_TICK <= value <= MOST_TICK]
    low, high = min(usable, default=1e-3), max(usable, default=1.0)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [round(factor * 10.0**decade, 12) for decade in decades for factor in factors]
        kept = [one for one in found if low <= one <= high]
        if len(kept) <= MOST_TICKS:
            break
    kept = kept[:: -(-len(kept) // MOST_TICKS) or 1]
    return kept if len(kept) > 1 else [round(low, 12), round(high, 12)]


def log_seconds(values: Sequence[float]) -> alt.Axis:
    """Return a logarithmic axis of seconds for these values."""
    return alt.Axis(labelExpr=DURATION_LABEL, values=log_ticks(values), labelOverlap="greedy")


def _names(*, grid: bool = False) -> alt.Axis:
    return alt.Axis(domain=False, ticks=False, labelLimit=190, grid=grid)


def series_colour(names: Sequence[str]) -> alt.Color:
    """Return one colour per series, with a legend where there are several."""
    legend = alt.Legend(title=None) if len(names) > 1 else None
    return alt.Color("series:N", scale=alt.Scale(domain=list(names), range=colours(len(names))), legend=legend)


def _short(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None
