"""`kvdiag probe compare` as blocks: ways of moving the same bytes, side by side."""

from kvdiag.model.probe_compare import CompareDocument
from kvdiag.report.html import curves
from kvdiag.report.html.blocks import Block, Cell, Chart, Empty, Part, Section, Tile, Tiles, cell, table
from kvdiag.report.html.probe_blocks import closing, drawn, ends, headline, metric
from kvdiag.report.html.units import bits, moment, number, percent, size


def part(document: CompareDocument) -> Part:
    """Return everything about one comparison."""
    asked, link = document.settings, document.link_bytes_per_second
    best = max(document.results, key=lambda one: one.bandwidth.value, default=None)
    sentence, value, note = "Nothing was measured", "", ""
    if best is not None:
        sentence = f"{best.method} is fastest: {bits(best.bandwidth.value)} at {size(best.size_bytes)}"
        others = [one for one in document.results if one.method != best.method and one.size_bytes == best.size_bytes]
        if others:
            next_best = max(others, key=lambda one: one.bandwidth.value)
            sentence += f", {next_best.method} {bits(next_best.bandwidth.value)}"
        value, note = bits(best.bandwidth.value), f"{best.method} at {size(best.size_bytes)}"
        if link:
            note += f", {percent(best.bandwidth.value / link)} of the link"
    contradicted = next((one.proof for one in document.proofs if one.proof.status == "contradicted"), None)
    return Part(
        title=f"Probe compare: {document.host} → {document.ends.peer_host}",
        subtitle=f"{', '.join(asked.methods)}; {ends(document.ends)}; {asked.rounds} rounds; {moment(document.time)}",
        headline=headline(
            sentence, value, note, judgements=document.judgements, proof=contradicted, failure=document.failure
        ),
        sections=(
            Section(title="Methods", blocks=_methods(document)),
            *closing(document.judgements, [(one.method, one.proof) for one in document.proofs], document.missing),
        ),
    )


def _methods(document: CompareDocument) -> tuple[Block, ...]:
    link = document.link_bytes_per_second
    known = (Tiles(tiles=(Tile("link", bits(link), "as the port states it"),)),) if link else ()
    if not document.results:
        return (*known, Empty(title="No methods", reason="nothing was measured"))
    names = list(dict.fromkeys(one.method for one in document.results))
    common = [
        {"x": max(one.size_bytes, 1), "size": size(one.size_bytes), "series": one.method} for one in document.results
    ]
    pairs = list(zip(common, document.results, strict=True))
    speed = [row | drawn(one.bandwidth, 8, 1.0) for row, one in pairs]
    times = [row | drawn(one.latency_p50, least=1e-9) for row, one in pairs]
    rows = [
        (
            Cell(one.method, strong=True),
            cell(size(one.size_bytes), one.size_bytes),
            metric(one.bandwidth),
            cell(percent(one.bandwidth.value / link) if link else "–", one.bandwidth.value / link if link else None),
            metric(one.latency_p50),
            cell(f"{number(one.ratio.value)} ×", one.ratio.value),
        )
        for one in document.results
    ]
    heads = ("method", "#size", "#bandwidth", "#of the link", "#p50 latency", "#over the first")

    def said(lines: list[dict[str, object]]) -> str:
        return "; ".join(f"{one['series']}, {one['size']}: {one['text']}" for one in lines)

    return (
        *known,
        Chart(
            title="Bandwidth against size", summary=said(speed), spec=curves.by_size(speed, names, "bits_per_second")
        ),
        Chart(title="Median latency against size", summary=said(times), spec=curves.by_size(times, names, "seconds")),
        table("Methods", heads, rows),
    )
