"""`kvdiag probe cold` as blocks: the first transfer step by step, against later ones."""

from kvdiag.model.probe_cold import ColdDocument
from kvdiag.report.html import charts
from kvdiag.report.html.blocks import Cell, Chart, Empty, Part, Section, Tile, Tiles, cell, table
from kvdiag.report.html.probe_blocks import closing, ends, figure, headline, metric
from kvdiag.report.html.units import duration, moment, number, size


def part(document: ColdDocument) -> Part:
    """Return everything about one probe of first transfers."""
    asked = document.settings
    slower = f"{number(document.slowdown.value)} ×"
    slowest = max(document.stages, key=lambda one: one.again.value, default=None)
    most = "" if slowest is None else f"; {slowest.name} takes most of it, {duration(slowest.again.value)}"
    told = headline(
        f"A first transfer of {size(asked.size_bytes)} on a fresh connection takes {duration(document.total.value)}, "
        f"{slower} a steady one{most}",
        slower,
        f"first transfer over steady, {duration(document.steady.value)}",
        judgements=document.judgements,
        failure=document.failure,
    )
    first, later = "very first connection", "later ones, median"
    tiles = (
        Tile("very first", duration(document.total_first_s), "everything cold"),
        Tile("fresh connection", figure(document.total)),
        Tile("steady", figure(document.steady), f"over {asked.steady_iterations:,} transfers"),
        Tile("slowdown", slower, "fresh over steady"),
    )
    bars = [
        {"name": one.name, "series": series, "value": value, "text": duration(value)}
        for one in document.stages
        for series, value in ((first, one.first_s), (later, one.again.value))
    ]
    rows = [
        (Cell(one.name, strong=True), cell(duration(one.first_s), one.first_s), metric(one.again))
        for one in document.stages
    ]
    steps = (
        (
            Chart(
                title="Steps of a first transfer",
                summary="; ".join(f"{one['name']}, {one['series']}: {one['text']}" for one in bars),
                spec=charts.grouped(bars, (first, later), "seconds"),
                wide=True,
            ),
            table("Steps", ("step", f"#{first}", f"#{later} (interval)"), rows),
        )
        if bars
        else (Empty(title="No steps", reason="nothing was measured"),)
    )
    return Part(
        title=f"Probe cold: {document.host} → {document.ends.peer_host}",
        subtitle=f"{asked.transport.upper()}; {ends(document.ends)}; {asked.rounds} rounds; {moment(document.time)}",
        headline=told,
        sections=(
            Section(title="First against steady", blocks=(Tiles(tiles=tiles), *steps)),
            *closing(document.judgements, (), document.missing),
        ),
    )
