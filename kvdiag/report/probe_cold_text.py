"""`kvdiag probe cold` for people: the steps of a first transfer, and how much slower it is than a later one."""

from rich.console import Group, RenderableType
from rich.text import Text

from kvdiag.model.probe_cold import ColdDocument
from kvdiag.model.probe_judgement import Metric
from kvdiag.report import probe_parts as parts


def render(document: ColdDocument) -> RenderableType:
    """Return everything a terminal shows."""
    settings = document.settings
    rows = [
        (stage.name, parts.seconds(stage.first_s), parts.seconds(stage.again.value), _interval(stage.again))
        for stage in document.stages
    ]
    total = document.total
    rows.append(("total", parts.seconds(document.total_first_s), parts.seconds(total.value), _interval(total)))
    return Group(
        Text(
            f"first transfer of {settings.size_bytes} bytes over {settings.transport.upper()} to "
            f"{document.ends.peer_host}, {settings.rounds} fresh connections",
            style="bold",
        ),
        parts.table(("step", "very first", "fresh connection", "interval"), rows),
        Text(
            f"steady transfer {parts.seconds(document.steady.value)}: a fresh connection's first transfer takes "
            f"{parts.interval(document.slowdown, form='.1f')} times as long, in the median round"
        ),
        *_without_peer(document),
        *parts.incomplete(document.failure, [document.total], settings.rounds),
        *parts.judgements(document.judgements),
        *(Text(reason) for reason in document.missing),
    )


def _interval(one: Metric) -> str:
    if one.low is None or one.high is None:
        return "needs 5 rounds"
    return f"{parts.seconds(one.low)} … {parts.seconds(one.high)}"


def _without_peer(document: ColdDocument) -> list[Text]:
    peer = next((stage.again.value for stage in document.stages if stage.name == "peer"), None)
    if peer is None:
        return []
    rest = document.total.value - peer
    times = f", {rest / document.steady.value:.1f} times as long" if document.steady.value > 0 else ""
    return [
        Text(f"peer is the session of kvdiag's own agent, no step of an engine: {parts.seconds(rest)} without{times}")
    ]
