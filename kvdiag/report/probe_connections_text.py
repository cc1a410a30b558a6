"""`kvdiag probe connections` for people."""

from rich.console import Group, RenderableType
from rich.text import Text

from kvdiag.model.probe_connections import ConnectionsDocument
from kvdiag.report import probe_parts as parts

_WORDS = {
    "not_offered": "not offered by this device",
    "refused": "refused by this device",
    "not_observable": "not observable here",
}
_FITS = {True: "fits", False: "DOES NOT FIT", None: "not known whether it fits"}


def render(document: ConnectionsDocument) -> RenderableType:
    """Return everything a terminal shows."""
    settings, limit = document.settings, document.exhaustion
    setup = ((row.step, parts.interval(row.seconds, 1e6, ".1f")) for row in document.setup)
    creation = (
        (
            ("1 thread" if row.threads == 1 else f"{row.threads} threads")
            + (", shared receive queue" if row.shared_receive_queue else ""),
            str(row.pairs),
            parts.interval(row.per_second, 1, ".0f"),
        )
        for row in document.creation
    )
    active = (
        (str(row.queue_pairs), str(row.queue_depth), parts.interval(row.bandwidth, 1 / parts.MIB), f"{row.of_best:.0%}")
        for row in document.active
    )
    offered = [(row.kind, parts.interval(row.create, 1e6, ".1f")) for row in document.sharing if row.create]
    end = f"refused with {limit.refusal}" if limit.refusal else "the probe's bound, nothing refused"
    return Group(
        Text(f"queue pairs on {settings.device}, {settings.rounds} rounds", style="bold"),
        parts.table(("step", "each[µs]"), setup),
        parts.table(("made by", "#pairs", "per second"), creation),
        parts.table(("sharing", "each[µs]"), offered) if offered else Text("sharing: none is offered"),
        *(
            Text(f"  {row.kind}: {_WORDS[row.status]}: {row.reason}")
            for row in document.sharing
            if row.status != "offered"
        ),
        Text(f"{limit.made} at a time ({end}; max_qp {limit.max_qp}), all freed, {limit.made_again} made again"),
        *([parts.table(("#qps", "depth each", "BW average[MiB/s]", "of best"), active)] if document.active else []),
        Text(f"fan-out: {_FITS[document.fan_out.fits]}: {document.fan_out.advice}", "bold"),
        *parts.incomplete(document.failure, [row.bandwidth for row in document.active], settings.rounds),
        *parts.judgements(document.judgements),
        *(Text(reason) for reason in document.missing),
    )
