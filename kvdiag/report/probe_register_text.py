"""`kvdiag probe register` for people."""

from rich.console import Group, RenderableType
from rich.text import Text

from kvdiag.model.probe_register import LimitRow, RegisterDocument
from kvdiag.report import probe_parts as parts

_US = 1e6


def render(document: RegisterDocument) -> RenderableType:
    """Return everything a terminal shows; medians in microseconds."""
    rows = (
        (
            f"{row.pages}, {'touched' if row.touched else 'untouched'}",
            str(row.size_bytes),
            *(f"{one.value * _US:.1f}" for one in (row.register, row.again, row.deregister)),
        )
        for row in document.rows
    )
    many = (
        (str(row.regions), str(row.region_bytes), *(f"{m.value * _US:.1f}" for m in (row.register, row.deregister)))
        for row in document.regions
    )
    threads = ((str(row.threads), str(row.size_bytes), f"{row.per_second.value:.0f}") for row in document.threads)
    devices = (
        (
            str(row.devices),
            str(row.size_bytes),
            *(f"{m.value * _US:.1f}" for m in (row.one_after_another, row.side_by_side, row.deregister)),
        )
        for row in document.devices
    )
    seen = [row for row in document.limits if row.reached is not None]
    limits = (
        (row.name, _bound(row, row.allowed), _bound(row, row.reached), row.refusal or "not reached") for row in seen
    )
    return Group(
        Text(f"registration on {document.settings.device}, {document.settings.rounds} rounds", style="bold"),
        parts.table(("pages", "#bytes", "register[µs]", "again[µs]", "deregister[µs]"), rows),
        parts.table(("#regions", "#bytes each", "register all[µs]", "deregister all[µs]"), many),
        parts.table(("#threads", "#bytes", "register+deregister/s"), threads),
        parts.table(("#devices", "#bytes", "one after another[µs]", "side by side[µs]", "deregister all[µs]"), devices),
        parts.table(("limit", "allowed", "reached", "refusal"), limits),
        *(Text(f"  {row.name}: {row.reason}") for row in seen if row.reason),
        *(Text(f"  {row.name}: not observable here: {row.reason}") for row in document.limits if row not in seen),
        Text(
            f"in the request path: {document.verdict.on_path.replace('_', ' ')}: {document.verdict.reason}",
            style="bold",
        ),
        *parts.incomplete(document.failure),
        *parts.judgements(document.judgements),
        *(Text(reason) for reason in document.missing),
    )


def _bound(row: LimitRow, value: int | None) -> str:
    return "no limit" if value is None else f"{value} {'regions' if row.name == 'max_mr' else 'bytes'}"
