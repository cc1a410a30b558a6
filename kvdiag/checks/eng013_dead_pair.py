"""ENG013: no pair of agents has lost each other for good."""

from kvdiag.checks.base import Check, Failed, Hosts, Outcome
from kvdiag.checks.logged import Logged, logged, none_logged, times
from kvdiag.model.finding import Finding, Severity

CODE = "ENG013"


def run(hosts: Hosts) -> Outcome:
    lost = logged(hosts.local, "nixl_status")
    gone = tuple(item for item in lost if item.field("status") == "NIXL_ERR_REMOTE_DISCONNECT")
    unknown = tuple(
        item
        for item in lost
        if item.field("status") == "NIXL_ERR_NOT_FOUND"
        and any(other.log is item.log and other.event.offset < item.event.offset for other in gone)
    )
    unsendable = logged(hosts.local, "notification_unsendable")
    broken = logged(hosts.local, "queue_modify_io")
    if unknown or unsendable:
        return Failed((_dead(hosts.local.host, (*gone[:1], *broken[:1], *unknown[:1], *unsendable[:1])),))
    if gone or broken:
        return Failed((_disconnected(hosts.local.host, (*gone, *broken)),))
    return none_logged(hosts, "no lost NIXL agent")


def _dead(host: str, shown: tuple[Logged, ...]) -> Finding:
    return Finding(
        code=CODE,
        severity=Severity.CRITICAL,
        subject="engine log",
        summary="a NIXL agent has lost its peer and does not know it any more: this pair stays dead until both restart",
        evidence=tuple(
            item.evidence("logged") for item in sorted(shown, key=lambda item: (item.log.path, item.event.offset))
        ),
        action="restart prefill and decode of this pair (both: each holds what the other has forgotten)",
        host=host,
    )


def _disconnected(host: str, found: tuple[Logged, ...]) -> Finding:
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject="engine log",
        summary=(
            f"a peer went away {times(found)} time(s) during transfers: its process ended, or the path to it broke; "
            "some engines do not connect again by themselves"
        ),
        evidence=(found[0].evidence("first"),),
        action="read the peer's log at that time; if transfers to it keep failing, restart both processes of the pair",
        host=host,
    )


CHECK = Check(
    code=CODE,
    title="no pair of NIXL agents is dead",
    run=run,
    explains=("ENG012", "ENG010", "ENG015"),
    explained_by=("FAB004", "WC001", "WC004", "WC009", "WC012", "ENG040", "ENG041"),
)
