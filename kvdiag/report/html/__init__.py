"""The HTML form: diagnoses, probes and preflights as one page that stands alone; computes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvdiag.model.report import ReportItem, ReportSummary
from kvdiag.report.html.page import lay_out
from kvdiag.report.html.parts import part


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    html: str
    summaries: tuple[ReportSummary, ...]


def render(items: Sequence[ReportItem], *, version: str, host: str, time: str) -> Rendered:
    """Return the page and its index; the same items and heads give the same page, byte for byte."""
    parts = [part(item) for item in items]
    summaries = tuple(
        ReportSummary(input=item.input, state=one.headline.state, found=one.headline.sentence)
        for item, one in zip(items, parts, strict=True)
    )
    title = parts[0].title if len(parts) == 1 else f"{len(parts)} inputs"
    return Rendered(
        html=lay_out(parts, summaries, title=title, version=version, host=host, time=time), summaries=summaries
    )
