"""`kvdiag probe connections` as blocks: what queue pairs cost, how many there can be, how they share a link."""

from kvdiag.model.probe_connections import ConnectionsDocument
from kvdiag.report.html import charts, curves
from kvdiag.report.html.blocks import Block, Cell, Chart, Empty, Part, Section, State, Tile, Tiles, cell, table
from kvdiag.report.html.probe_blocks import closing, drawn, ends, headline, metric
from kvdiag.report.html.units import count, duration, moment, percent, rate, size

_STATES: dict[str, State] = {
    "offered": "good",
    "not_offered": "unknown",
    "refused": "warning",
    "not_observable": "unknown",
}
_KINDS = {"srq": "shared receive queue", "xrc": "extended reliable connection", "dc": "dynamically connected"}


def part(document: ConnectionsDocument) -> Part:
    """Return everything about one probe of connections."""
    asked, fan = document.settings, document.fan_out
    told = headline(
        fan.advice[:1].upper() + fan.advice[1:],
        duration(fan.setup_s),
        f"to set up {asked.prefill} × {asked.decode} instances, {asked.pairs_per_link} queue pairs per link",
        judgements=document.judgements,
        failure=document.failure,
        missed=(f"{asked.prefill} × {asked.decode} instances on one adapter",) if fan.fits is False else (),
        unknown=("try as many queue pairs as it needs: --most",) if fan.fits is None else (),
    )
    peer = ends(document.ends) if document.ends else "no peer"
    return Part(
        title=f"Probe connections: {asked.device} on {document.host}",
        subtitle=f"{peer}; {asked.rounds} rounds; {moment(document.time)}",
        headline=told,
        sections=(
            Section(title="Set-up", blocks=_setup(document)),
            Section(title="Many queue pairs", blocks=_many(document)),
            *closing(document.judgements, (), document.missing),
        ),
    )


def _setup(document: ConnectionsDocument) -> tuple[Block, ...]:
    if not document.setup:
        return (Empty(title="No set-up", reason="nothing was measured"),)
    bars = [{"name": one.step, **drawn(one.seconds)} for one in document.setup]
    said = "; ".join(f"{one['name']}: {one['text']}" for one in bars)
    rows = [(Cell(one.step, strong=True), metric(one.seconds)) for one in document.setup]
    made = [
        (
            cell(one.threads, one.threads),
            cell(f"{one.pairs:,}", one.pairs),
            cell("yes" if one.shared_receive_queue else "no"),
            cell(rate(one.per_second.value, "/s"), one.per_second.value),
        )
        for one in document.creation
    ]
    heads = ("#threads", "#queue pairs", "one shared receive queue", "#made per second")
    return (
        Chart(
            title="Seconds of one call for one queue pair",
            summary=said,
            spec=charts.intervals(bars, "seconds"),
            wide=True,
        ),
        table("Calls", ("call", "#seconds (interval)"), rows),
        table("Made by threads together", heads, made),
    )


def _many(document: ConnectionsDocument) -> tuple[Block, ...]:
    fan, most = document.fan_out, document.exhaustion
    tiles = (
        Tile("a prefill node needs", f"{fan.prefill_pairs:,}", "queue pairs"),
        Tile("a decode node needs", f"{fan.decode_pairs:,}", "queue pairs"),
        Tile("made at once for", count(fan.most_peers, "peer"), "on one adapter here"),
        Tile("could be made", f"{most.made:,}", f"of {most.max_qp:,} stated; as many again: {most.made_again:,}"),
    )
    blocks: list[Block] = [Tiles(tiles=tiles)]
    if most.refusal:
        blocks.append(Empty(title="What refused more queue pairs", reason=most.refusal))
    if document.active:
        lines = [
            {
                "x": one.queue_pairs,
                "size": count(one.queue_pairs, "queue pair"),
                "series": "bandwidth",
                **drawn(one.bandwidth, 8),
            }
            for one in document.active
        ]
        spec = curves.by_size(lines, ("bandwidth",), "bits_per_second", counted="active queue pairs", log=False)
        said = "; ".join(f"{one['size']}: {one['text']}" for one in lines)
        title = f"One load of {size(document.settings.size_bytes)} messages over more queue pairs"
        blocks.append(Chart(title=title, summary=said, spec=spec, wide=True))
        rows = [
            (
                cell(f"{one.queue_pairs:,}", one.queue_pairs),
                cell(one.queue_depth, one.queue_depth),
                metric(one.bandwidth),
                cell(percent(one.of_best), one.of_best),
            )
            for one in document.active
        ]
        blocks.append(table("Sharing one load", ("#queue pairs", "#depth of each", "#bandwidth", "#of the best"), rows))
    else:
        blocks.append(Empty(title="Sharing one load", reason="not observable here: the probe had no peer"))
    rows = [
        (
            Cell(_KINDS[one.kind], strong=True),
            Cell(one.status.replace("_", " "), state=_STATES[one.status]),
            metric(one.create),
            cell(one.reason or "–"),
        )
        for one in document.sharing
    ]
    title = "Ways to reach many peers with few objects"
    if rows:
        blocks.append(table(title, ("what", "status", "#seconds to make one", "why"), rows))
    else:
        blocks.append(Empty(title=title, reason="not observable here: none was tried"))
    return tuple(blocks)
