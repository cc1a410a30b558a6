"""`kvdiag probe register` as blocks: what registering memory costs, by size, pages, regions, threads and devices."""

from kvdiag.model.probe_register import LimitRow, RegisterDocument
from kvdiag.report.html import curves
from kvdiag.report.html.blocks import (
    Block,
    Cell,
    Chart,
    Empty,
    Headline,
    Part,
    Section,
    State,
    Tile,
    Tiles,
    cell,
    table,
)
from kvdiag.report.html.probe_blocks import closing, drawn, headline, metric
from kvdiag.report.html.units import bits, duration, moment, number, percent, rate, size

_PATH: dict[str, tuple[State, str, str]] = {
    "allowed": ("good", "MAY BE ON THE PATH", "registering in the request's path costs little here"),
    "not_allowed": ("critical", "KEEP OFF THE PATH", "register KV memory once, at start, never in the request's path"),
    "undetermined": ("unknown", "CANNOT JUDGE", "give --budget-ms, the time that registration may cost a request"),
}
_STATES: dict[str, State] = {"reached": "warning", "not_reached": "good", "not_observable": "unknown"}


def part(document: RegisterDocument) -> Part:
    """Return everything about one probe of registration."""
    asked = document.settings
    return Part(
        title=f"Probe register: {asked.device} on {document.host}",
        subtitle=f"devices {', '.join(asked.devices)}; {asked.rounds} rounds; {moment(document.time)}",
        headline=_headline(document),
        sections=(
            Section(title="Against size", blocks=_sizes(document)),
            Section(title="Regions, threads, devices", blocks=_scaling(document)),
            Section(title="Limits", blocks=_limits(document.limits)),
            *closing(document.judgements, (), document.missing),
        ),
    )


def _headline(document: RegisterDocument) -> Headline:
    found = document.verdict
    state, word, action = _PATH[found.on_path]
    sentence = found.reason[:1].upper() + found.reason[1:]
    told = headline(sentence, duration(found.kv_s), "", judgements=document.judgements, failure=document.failure)
    if told.state != "good":
        return told
    wire = "" if found.share_of_wire is None else f", {percent(found.share_of_wire)} of the wire's time"
    return Headline(
        state=state,
        word=word,
        sentence=sentence,
        figure=duration(found.kv_s),
        figure_note=f"to register and deregister {size(found.kv_bytes)} of KV cache{wire}",
        actions=(action,),
    )


def _sizes(document: RegisterDocument) -> tuple[Block, ...]:
    found = document.verdict
    per_byte = found.seconds_per_byte
    tiles = (
        Tile("fixed", duration(found.fixed_s), "per registration"),
        Tile(
            "per byte, as a rate",
            bits(1 / per_byte) if per_byte > 0 else "–",
            f"{duration(per_byte * (1 << 30))} per GiB",
        ),
        Tile("untouched memory", duration(found.kv_untouched_s), f"for {size(found.kv_bytes)}"),
    )
    if not document.rows:
        return (Tiles(tiles=tiles), Empty(title="No sizes", reason="nothing was measured"))
    lines = [
        {
            "x": row.size_bytes,
            "size": size(row.size_bytes),
            "series": f"{row.pages} pages, {'touched' if row.touched else 'untouched'}",
            **drawn(row.register, least=1e-9),
        }
        for row in document.rows
    ]
    names = list(dict.fromkeys(str(line["series"]) for line in lines))
    rows = [
        (
            Cell(row.pages, strong=True),
            cell("yes" if row.touched else "no"),
            cell(size(row.size_bytes), row.size_bytes),
            metric(row.register),
            metric(row.again),
            metric(row.deregister),
        )
        for row in document.rows
    ]
    heads = ("pages", "touched before", "#size", "#register", "#again", "#deregister")
    said = "; ".join(f"{line['series']}, {line['size']}: {line['text']}" for line in lines)
    return (
        Tiles(tiles=tiles),
        Chart(title="Registration against size", summary=said, spec=curves.by_size(lines, names, "seconds"), wide=True),
        table("Registrations", heads, rows),
    )


def _scaling(document: RegisterDocument) -> tuple[Block, ...]:
    blocks: list[Block] = []
    regions = [
        (
            cell(f"{one.regions:,}", one.regions),
            cell(size(one.region_bytes), one.region_bytes),
            metric(one.register),
            metric(one.deregister),
        )
        for one in document.regions
    ]
    threads = [
        (
            cell(one.threads, one.threads),
            cell(size(one.size_bytes), one.size_bytes),
            cell(rate(one.per_second.value, "/s"), one.per_second.value),
        )
        for one in document.threads
    ]
    devices = [
        (
            cell(one.devices, one.devices),
            cell(size(one.size_bytes), one.size_bytes),
            metric(one.one_after_another),
            metric(one.side_by_side),
            metric(one.deregister),
        )
        for one in document.devices
    ]
    if regions:
        heads = ("#regions", "#each", "#register", "#deregister")
        blocks.append(table("The largest size cut into regions", heads, regions))
    if threads:
        blocks.append(table("Registrations by threads together", ("#threads", "#size", "#per second"), threads))
    if devices:
        ways = ("#devices", "#size", "#one after another", "#side by side", "#deregister")
        blocks.append(table("The same memory on several devices", ways, devices))
    empty = Empty(title="Not measured", reason="not observable here: nothing but sizes was asked for")
    return tuple(blocks) or (empty,)


def _limits(limits: tuple[LimitRow, ...]) -> tuple[Block, ...]:
    def amount(name: str, value: int | None, absent: str) -> Cell:
        said = absent if value is None else number(value, 6) if name == "max_mr" else size(value)
        return cell(said, value)

    if not limits:
        return (Empty(title="No limits", reason="not observable here: no limit was tried"),)
    rows = [
        (
            Cell(one.name, strong=True),
            Cell(one.status.replace("_", " "), state=_STATES[one.status]),
            amount(one.name, one.allowed, "–" if one.status == "not_observable" else "no limit"),
            amount(one.name, one.reached, "–"),
            cell("; ".join(filter(None, (one.refusal, one.reason))) or "–"),
        )
        for one in limits
    ]
    heads = ("limit", "status", "#allowed", "#really registered", "what refused")
    return (table("Limits of registration", heads, rows),)
