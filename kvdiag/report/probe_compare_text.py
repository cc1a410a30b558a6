"""`kvdiag probe compare` for people: one row per size and method, then the proofs and verdicts."""

from rich.console import Group, RenderableType
from rich.text import Text

from kvdiag.model.probe_compare import CompareDocument
from kvdiag.report import probe_parts as parts


def render(document: CompareDocument) -> RenderableType:
    """Return everything a terminal shows; medians over the rounds with their intervals, MiB/s as perftest has them."""
    settings, ends = document.settings, document.ends
    where = f" over {ends.local_device} -> {ends.peer_device}" if ends.local_device else ""
    head = f"{document.host} -> {ends.peer} ({ends.peer_host}){where}: {settings.rounds} rounds by turns"
    rows = (
        (
            row.method,
            str(row.size_bytes),
            parts.interval(row.bandwidth, 1 / parts.MIB),
            f"{row.latency_p50.value * 1e6:.1f}",
            parts.interval(row.ratio),
        )
        for row in sorted(document.results, key=lambda row: row.size_bytes)
    )
    return Group(
        Text(head, style="bold"),
        parts.table(("method", "#bytes", "BW average[MiB/s]", "t_p50[µs]", f"of {settings.methods[0]}"), rows),
        *(line for one in document.proofs for line in parts.proof(one.method, one.proof)),
        *parts.incomplete(document.failure, [row.bandwidth for row in document.results], settings.rounds),
        *parts.judgements(document.judgements),
        *(Text(reason) for reason in document.missing),
    )
