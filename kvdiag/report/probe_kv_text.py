"""`kvdiag probe kv` for people: layouts side by side, then what a descriptor costs."""

from rich.console import Group, RenderableType
from rich.text import Text

from kvdiag.model.probe_kv import Coefficient, KvCost, KvDocument
from kvdiag.report import probe_parts as parts

_US = 1e6


def render(document: KvDocument) -> RenderableType:
    """Return everything a terminal shows; medians in microseconds and MiB/s."""
    settings, request, ends = document.settings, document.request, document.ends
    where = "two processes of this host" if document.ends is None else f"{document.ends.peer_host}"
    several = len({row.pair for row in document.rows}) > 1
    rows = (
        (
            f"{row.operation} {row.mode}",
            *((_ranks(row.pair),) if several else ()),
            str(row.tokens),
            str(row.descriptors),
            f"{row.bytes / 1024:.0f}",
            *(f"{one.value * _US:.0f}" for one in (row.build, row.post, row.wire, row.poll, row.total)),
            f"{row.fastest_s * _US:.0f}",
            f"{row.bandwidth.value / parts.MIB:.1f}",
            f"{row.of_contiguous.value:.2f}",
        )
        for row in document.rows
    )
    names = (
        "[µs]",
        *(("ranks",) if several else ()),
        "tokens",
        "#desc",
        "KiB",
        "build",
        "post",
        "wire",
        "poll",
        "total",
        "fastest",
        "MiB/s",
        "of contiguous",
    )
    head = f"KV blocks over {settings.transport.upper()} to {where}, medians of {settings.rounds} rounds by turns"
    pieces = f"{_counted(request.pairs, 'pair')} of ranks, {_counted(request.descriptors, 'descriptor')}"
    whole = (
        f"{request.bytes_per_token} bytes a token; {max(settings.tokens)} tokens from TP {settings.prefill_tp} to TP "
        f"{settings.decode_tp}: {pieces}, {request.bytes} bytes; measured: {_measured(document)}"
    )
    return Group(
        Text(head, style="bold"),
        *([Text(f"geometry: {settings.model}")] if settings.model else []),
        Text(whole),
        *([Text(f"memory: {ends.local_memory}; peer: {ends.peer_memory}")] if ends and ends.local_memory else []),
        parts.table(names, rows),
        *(line for cost in document.costs for line in _cost(cost, document.sizes(cost.operation))),
        *parts.proof(settings.transport, document.proof),
        *parts.incomplete(document.failure, [row.total for row in document.rows], settings.rounds),
        *parts.judgements(document.judgements),
        *(Text(reason) for reason in document.missing),
    )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _ranks(pair: tuple[int, int] | None) -> str:
    return "all" if pair is None else f"{pair[0]}->{pair[1]}"


def _measured(document: KvDocument) -> str:
    pairs = dict.fromkeys(row.pair for row in document.rows)
    if len(pairs) > 1:
        return "each pair alone, then all together"
    (pair,) = pairs
    return "all pairs together" if pair is None else f"ranks {pair[0]} -> {pair[1]}"


def _cost(cost: KvCost, sizes: int) -> list[Text]:
    """Return the lines of a fit, its figures only where it holds; rows of one size cannot tell what bytes cost."""
    model = cost.model
    per_byte = model.per_byte_s.value
    descriptor = f"a descriptor {_interval(model.per_descriptor_s)}"
    if cost.doubt:
        lines = [Text(f"{cost.operation}: {cost.doubt}", style="yellow")]
    elif sizes == 1:
        fixed = "what these bytes cost and what is fixed are not told apart by one size: give more --tokens (256,2048)"
        lines = [Text(f"{cost.operation}: {descriptor}; {fixed}")]
    else:
        bytes_ = f"{1 / per_byte / parts.MIB:.0f} MiB/s" if per_byte else "nothing measurable"
        lines = [Text(f"{cost.operation}: fixed {_interval(model.fixed_s)}, {descriptor}, bytes {bytes_}")]
    return lines + [
        Text(
            f"  {one.mode}, {one.tokens} tokens, {_ranks(one.pair)}, not used for the fit: predicted "
            f"{parts.seconds(one.predicted_s)}, measured {parts.seconds(one.measured_s)} ({one.relative_error:+.0%})"
        )
        for one in cost.predictions
    ]


def _interval(one: Coefficient) -> str:
    if one.value == 0:
        return "nothing measurable"
    value = f"{one.value * _US:.2f} µs"
    return value if one.low is None or one.high is None else f"{value} ({one.low * _US:.2f} … {one.high * _US:.2f})"
