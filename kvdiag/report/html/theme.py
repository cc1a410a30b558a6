"""Colours and the configuration that all charts share.

The categorical colours are those of Okabe and Ito ("Color Universal Design", 2008), moved until every two of them
differ for people with any of the common colour vision deficiencies (simulated in the tests); the heatmap's are cividis
(Nuñez, Anderton and Renslow, 2018). Charts name CSS variables, so that one drawing serves a light page, a dark page and
print.
"""

from typing import Any

CATEGORICAL = ("#1366B8", "#DAB100", "#099F80", "#EE6AB2", "#48BCF8", "#B74803", "#B98B15")
"""On light pages and in print."""
CATEGORICAL_DARK = ("#519FE3", "#F39604", "#1CD27E", "#FFB2C0", "#9ED7FF", "#E15B21", "#F0E442")
"""The same hues, lightened where they would sink into a dark page."""
REST = ("#8A8F98", "#767C86")
PERIODS = ("baseline", "incident", "whole period")
PERIOD_COLOURS = ("var(--c1)", "var(--c6)", "var(--c1)")
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", "DejaVu Sans", sans-serif'


def colours(how_many: int) -> list[str]:
    """Return so many categorical colours as CSS variables; beyond seven they repeat."""
    return [f"var(--c{number % len(CATEGORICAL) + 1})" for number in range(how_many)]


def palette_css(dark: bool) -> str:
    """Return the declarations of the categorical colours' variables."""
    chosen = CATEGORICAL_DARK if dark else CATEGORICAL
    named = [f"--c{number}: {colour};" for number, colour in enumerate(chosen, start=1)]
    return " ".join([*named, f"--c-rest: {REST[dark]};"])


def config() -> dict[str, Any]:
    """Return the Vega-Lite configuration of every chart."""
    axis = {
        "labelColor": "var(--ink-2)",
        "titleColor": "var(--ink-2)",
        "gridColor": "var(--line)",
        "domainColor": "var(--line-2)",
        "tickColor": "var(--line-2)",
        "labelFontSize": 11.5,
        "titleFontSize": 11.5,
        "titleFontWeight": 500,
        "titlePadding": 8,
        "labelPadding": 5,
        "tickSize": 4,
        "labelLimit": 200,
    }
    return {
        "font": FONT,
        "background": "transparent",
        "padding": {"left": 2, "right": 12, "top": 6, "bottom": 4},
        "view": {"stroke": "transparent", "continuousHeight": 240},
        "axis": axis,
        "legend": {
            "labelColor": "var(--ink)",
            "titleColor": "var(--ink-2)",
            "labelFontSize": 12,
            "titleFontSize": 11.5,
            "titleFontWeight": 500,
            "orient": "top",
            "direction": "horizontal",
            "columnPadding": 16,
            "symbolSize": 90,
            "symbolStrokeWidth": 2,
            "labelLimit": 220,
            "offset": 12,
        },
        "text": {"color": "var(--ink)", "fontSize": 11.5},
        "line": {"strokeWidth": 1.8, "strokeJoin": "round"},
        "rule": {"color": "var(--ink-2)"},
    }
