"""`kvdiag probe cold` for people: the steps of a first transfer, and how much slower it is than a later one."""

from rich.console import Group, RenderableType
from rich.text import Text

from kvdiag.model.probe_cold import ColdDocument
from kvdiag.report import probe_parts as parts


def render(document: ColdDocument) -> RenderableType:
    """Return everything a terminal shows."""
    settings = document.settings
    rows = [
        (stage.name, parts.seconds(stage.first_s), parts.seconds(stage.again.value), parts.interval(stage.again, 1e6))
        for stage in document.stages
    ]
    total = document.total
    rows.append(
        ("total", parts.seconds(document.total_first_s), parts.seconds(total.value), parts.interval(total, 1e6))
    )
    return Group(
        Text(
            f"first transfer of {settings.size_bytes} bytes over {settings.transport.upper()} to "
            f"{document.ends.peer_host}, {settings.rounds} fresh connections",
            style="bold",
        ),
        parts.table(("step", "very first", "fresh connection", "interval[µs]"), rows),
        Text(
            f"steady transfer {parts.seconds(document.steady.value)}: a fresh connection's first transfer takes "
            f"{parts.interval(document.slowdown, form='.1f')} times as long, in the median round"
        ),
        *parts.incomplete(document.failure),
        *parts.judgements(document.judgements),
        *(Text(reason) for reason in document.missing),
    )
