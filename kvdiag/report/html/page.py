"""Lay parts out as one HTML page that needs nothing else: style, charts and their library are inside."""

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import altair
import vl_convert
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from kvdiag.model.report import ReportInput, ReportSummary
from kvdiag.report.html.blocks import Block, Cell, Chart, Part, cell, table
from kvdiag.report.html.theme import FONT, config, palette_css
from kvdiag.report.html.units import moment, size

_FOLDER = Path(__file__).parent
_WORDS = {"critical": "critical", "warning": "warning", "good": "good", "unknown": "not known"}
_UNSEEN = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
_UNSEEN |= {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
"""Control characters, and those that turn the direction of what follows."""


def harmless(text: str) -> str:
    """Return the text with what could not be seen, or would disturb what follows, made visible."""
    return text.translate(_UNSEEN).encode("utf-8", "backslashreplace").decode()


def lay_out(
    parts: Sequence[Part], summaries: Sequence[ReportSummary], *, title: str, version: str, host: str, time: str
) -> str:
    """Return the whole page; every text from inputs is escaped, and scripts run only if their hash is in the policy."""
    charts: list[Chart] = []

    def chart_number(chart: Chart) -> int:
        charts.append(chart)
        return len(charts) - 1

    library, script = chart_library(), (_FOLDER / "page.js").read_text()
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: harmless(value) if type(value) is str else value,
    )
    environment.filters["moment"] = moment
    found: str = environment.get_template("page.html.jinja").render(
        parts=parts,
        index=_index(parts, summaries),
        provenance=_provenance([one.input for one in summaries]),
        title=title,
        version=version,
        host=host,
        time=time,
        chart_number=chart_number,
        charts=lambda: {"config": config(), "specs": [_described(one) for one in charts]},
        css=Markup(_css()),  # noqa: S704  # our own file
        library=Markup(library),  # noqa: S704  # the chart library
        script=Markup(script),  # noqa: S704  # our own file
        policy=_policy(library, script),
    )
    return found


@cache
def chart_library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed (BSD-3-Clause) as one script, in the versions that the charts are for."""
    wanted = altair.SCHEMA_VERSION.removeprefix("v").rpartition(".")[0]
    text = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=wanted)
    return f"/* Vega, Vega-Lite, Vega-Embed: BSD-3-Clause, vega.github.io */\n{text}".replace("</script", "<\\/script")


def _policy(*scripts: str) -> str:
    """Return a policy that lets the page load nothing and run nothing but these scripts.

    Vega compiles its expressions, which are ours, hence unsafe-eval.
    """
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes} 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _css() -> str:
    text = (_FOLDER / "page.css").read_text()
    start, end = text.index("DARK_OPEN"), text.index("DARK_CLOSE")
    light, declared = palette_css(dark=False), text[start + len("DARK_OPEN") : end]
    declared = declared.replace("PALETTE_DARK", palette_css(dark=True))
    dark = (
        f'@media screen {{ :root[data-theme="dark"] {{ color-scheme: dark;{declared}}} }}\n'
        ':root[data-theme="light"] { color-scheme: light; }\n'
        f'@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{{declared}}} }}\n'
    )
    whole = text[:start] + dark + text[end + len("DARK_CLOSE") :]
    return whole.replace("PALETTE_LIGHT", light).replace("FONT", FONT)


def _index(parts: Sequence[Part], summaries: Sequence[ReportSummary]) -> Any:
    rows = [
        (
            cell(number, number),
            Cell(_WORDS[summary.state], order=list(_WORDS).index(summary.state), state=summary.state),
            Cell(part.title, link=f"part-{number}"),
            cell(part.headline.figure),
            cell(summary.found),
        )
        for number, (part, summary) in enumerate(zip(parts, summaries, strict=True), start=1)
    ]
    return table("Inputs", ("no.", "state", "input", "number", "found"), rows)


def _provenance(inputs: Sequence[ReportInput]) -> tuple[Block, ...]:
    rows = [
        (
            Cell(one.path, code=True),
            cell(one.kind),
            cell(size(one.bytes), one.bytes),
            cell(moment(one.modified)),
            cell(" ".join(filter(None, (one.made_by and f"kvdiag {one.made_by}", one.made_on and f"on {one.made_on}",
                                        one.made_at and moment(one.made_at)))) or "not said"),
            cell("; ".join(one.notes) or "–"),
        )
        for one in inputs
    ]  # fmt: skip
    return (table("Inputs", ("path", "kind", "#size", "last changed", "made by", "left out, missing"), rows),)


def _described(chart: Chart) -> Any:
    """Return the specification with the words that are read out in place of the drawing."""
    return _harmless_tree(chart.spec | {"description": f"{chart.title}: {chart.summary}"})


def _harmless_tree(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _harmless_tree(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_harmless_tree(one) for one in value]
    return harmless(value) if isinstance(value, str) else value
