"""`kvdiag probe kv` as blocks: what each layout costs, where its time goes, and what a descriptor costs."""

from kvdiag.model.probe_kv import Coefficient, KvCost, KvDocument, KvRow
from kvdiag.report.html import charts
from kvdiag.report.html.blocks import Block, Cell, Chart, Empty, Part, Section, Tile, Tiles, cell, table
from kvdiag.report.html.probe_blocks import closing, drawn, ends, figure, headline, metric
from kvdiag.report.html.units import bits, count, duration, in_unit, moment, number, percent, size

_MODES = {"block": "block", "layer": "layer", "coalesced": "coalesced", "contiguous": "contiguous"}
MOST_BARS = 24


def part(document: KvDocument) -> Part:
    """Return everything about one probe of KV blocks."""
    asked, request = document.settings, document.request
    shape = asked.geometry
    worst = min((one for one in document.rows if one.mode != "contiguous"), key=_share, default=None)
    sentence, value, note = "Nothing was measured", "", ""
    if worst is not None:
        sentence = f"The {worst.mode} layout reaches {percent(worst.of_contiguous.value)} of one contiguous transfer's "
        sentence += (
            f"bandwidth at {count(worst.tokens, 'token')} ({count(worst.descriptors, 'descriptor')}, {worst.operation})"
        )
        value, note = percent(worst.of_contiguous.value), f"of contiguous, {bits(worst.bandwidth.value)}"
    tiles = (
        Tile("KV cache", f"{size(request.bytes_per_token)} per token", f"{size(request.bytes)} for one request"),
        Tile("descriptors", f"{request.descriptors:,}", f"of one request, {count(request.pairs, 'pair')} of ranks"),
        Tile("model", f"{shape.layers} layers", f"{shape.kv_heads} KV heads × {shape.head_size}, {shape.layout}"),
        Tile("blocks", count(shape.block_tokens, "token"), f"{shape.dtype_bytes} bytes per element"),
        Tile("tensor parallel", f"{asked.prefill_tp} → {asked.decode_tp}", f"measured: {asked.measured}"),
    )
    proofs = ((asked.transport.upper(), document.proof),)
    return Part(
        title=f"Probe kv: {asked.model or 'KV blocks'} over {asked.transport.upper()}",
        subtitle=f"{', '.join(asked.operations)}; {ends(document.ends)}; {document.host}, {moment(document.time)}",
        headline=headline(
            sentence, value, note, judgements=document.judgements, proof=document.proof, failure=document.failure
        ),
        sections=(
            Section(title="One request", blocks=(Tiles(tiles=tiles),)),
            Section(title="Layouts", blocks=_layouts(document.rows)),
            Section(title="What a descriptor costs", blocks=_costs(document)),
            *closing(document.judgements, proofs, document.missing),
        ),
    )


def _share(row: KvRow) -> float:
    return row.of_contiguous.value


def _label(row: KvRow) -> str:
    ranks = "" if row.pair is None else f", ranks {row.pair[0]} → {row.pair[1]}"
    return f"{row.operation} {_MODES[row.mode]}, {count(row.tokens, 'token')}{ranks}"


def _layouts(rows: tuple[KvRow, ...]) -> tuple[Block, ...]:
    if not rows:
        return (Empty(title="No layouts", reason="nothing was measured"),)
    shown = rows[:MOST_BARS]
    speed = [{"name": _label(one), **drawn(one.bandwidth, 8)} for one in shown]
    stages = ("build", "post", "wire", "poll")
    parts = [
        {"bar": _label(one), "part": stage, "value": getattr(one, stage).value, "text": figure(getattr(one, stage))}
        for one in shown
        for stage in stages
    ]
    note = f"The first {MOST_BARS} of {len(rows)}." if len(rows) > MOST_BARS else ""
    told = "; ".join(f"{row['name']}: {row['text']}" for row in speed)
    table_rows = [
        (
            Cell(one.operation),
            Cell(one.mode, strong=True),
            cell("all" if one.pair is None else f"{one.pair[0]} → {one.pair[1]}"),
            cell(f"{one.tokens:,}", one.tokens),
            cell(f"{one.descriptors:,}", one.descriptors),
            cell(size(one.bytes), one.bytes),
            metric(one.bandwidth),
            metric(one.of_contiguous),
            metric(one.total),
            metric(one.build),
            metric(one.post),
            metric(one.wire),
            metric(one.poll),
        )
        for one in rows
    ]
    timed = [f"#{name}" for name in ("total", *stages)]
    heads = (
        "operation",
        "layout",
        "ranks",
        "#tokens",
        "#descriptors",
        "#bytes",
        "#bandwidth",
        "#of contiguous",
        *timed,
    )
    return (
        Chart(title="Bandwidth by layout", summary=told, spec=charts.intervals(speed, "bits_per_second"), note=note),
        Chart(
            title="Where a transfer's time goes",
            summary="; ".join(f"{row['bar']}: {row['part']} {row['text']}" for row in parts),
            spec=charts.stacked(parts, [_label(one) for one in shown], [*stages, "other"]),
            note=note,
        ),
        table("Layouts", heads, table_rows),
    )


def _costs(document: KvDocument) -> tuple[Block, ...]:
    costs = document.costs
    if not costs:
        return (Empty(title="No cost model", reason="not observable here: too few sizes were measured to fit one"),)
    rows = [_fitted(one, document.sizes(one.operation)) for one in costs]
    held = [
        (
            cell(one.operation),
            Cell(item.mode, strong=True),
            cell("all" if item.pair is None else f"{item.pair[0]} → {item.pair[1]}"),
            cell(f"{item.tokens:,}", item.tokens),
            cell(duration(item.predicted_s), item.predicted_s),
            cell(duration(item.measured_s), item.measured_s),
            cell(f"{number(item.relative_error * 100, 2)} %", item.relative_error),
        )
        for one in costs
        for item in one.predictions
    ]
    heads = ("operation", "#fixed", "#per descriptor", "#per byte, as a rate", "#points")
    checks = ("operation", "layout", "ranks", "#tokens", "#predicted", "#measured", "#error")
    note = "Seconds = fixed + descriptors × per descriptor + bytes × per byte; 95 % intervals."
    note = " ".join((note, *(f"{one.operation}: {one.doubt}." for one in costs if one.doubt)))
    return (
        table("Cost model", heads, rows, note),
        table("Predictions for sizes left out of the fit", checks, held),
    )


def _fitted(one: KvCost, sizes: int) -> tuple[Cell, ...]:
    model = one.model
    points = cell(f"{model.points}", model.points)
    if one.doubt:
        return (Cell(one.operation, strong=True), *(Cell("does not hold", state="warning") for _ in range(3)), points)
    fixed = Cell("not told from the bytes' cost by one size")
    per_byte = model.per_byte_s.value
    return (
        Cell(one.operation, strong=True),
        _coefficient(model.fixed_s, "seconds") if sizes > 1 else fixed,
        _coefficient(model.per_descriptor_s, "seconds"),
        cell(bits(1 / per_byte) if per_byte > 0 and sizes > 1 else "–", per_byte),
        points,
    )


def _coefficient(one: Coefficient, unit: str) -> Cell:
    said = in_unit(one.value, unit)
    if one.low is not None and one.high is not None:
        said += f" ({in_unit(one.low, unit)} to {in_unit(one.high, unit)})"
    return cell(said, one.value)
