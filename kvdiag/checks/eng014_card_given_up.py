"""ENG014: Mooncake uses every card that it was given."""

from kvdiag.checks.base import Check, Failed, Hosts, Outcome
from kvdiag.checks.completions import FLUSHED, completions
from kvdiag.checks.logged import Logged, logged, none_logged, times
from kvdiag.derive.rdma import joined
from kvdiag.model.finding import Evidence, Finding, Severity

CODE = "ENG014"


def run(hosts: Hosts) -> Outcome:
    disabled = logged(hosts.local, "nic_disabled")
    refused = logged(hosts.local, "nic_not_active")
    if not disabled and not refused:
        return none_logged(hosts, "no card given up by Mooncake")
    devices = tuple(sorted({item.field("device") for item in (*disabled, *refused) if item.field("device")}))
    first = (disabled or refused)[0]
    return Failed(
        (
            Finding(
                code=CODE,
                severity=Severity.WARNING,
                subject=joined(devices) or "engine log",
                summary=(
                    f"Mooncake has given up {joined(devices) or 'a card'} after errors on it and will not use it again "
                    "until it is restarted"
                ),
                evidence=(first.evidence("logged"), *_refusals(refused), *_before(hosts, first)),
                action="put right what failed before this line, then restart the engine",
                host=hosts.local.host,
                devices=devices,
            ),
        )
    )


def _refusals(refused: tuple[Logged, ...]) -> tuple[Evidence, ...]:
    if not refused:
        return ()
    value = f"{times(refused)} transfers asked for a card that is not active"
    return (Evidence(name="since then", value=value, source=refused[0].source),)


def _before(hosts: Hosts, first: Logged) -> tuple[Evidence, ...]:
    """Return the first error before the card was given up: that is the cause to look at."""
    errors = [
        item
        for item in completions(hosts.local)
        if item.log is first.log and item.event.offset < first.event.offset and item.field("status") != FLUSHED
    ]
    return (errors[0].evidence("before it"),) if errors else ()


CHECK = Check(
    code=CODE,
    title="Mooncake has given up no card",
    run=run,
    explained_by=("FAB002", "FAB004", "WC001", "WC004", "WC009", "WC010", "WC012"),
)
