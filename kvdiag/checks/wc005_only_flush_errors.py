"""WC005: flushed requests in the log come after the error that flushed them."""

from kvdiag.checks.base import Check, Failed, Hosts, Outcome, Passed
from kvdiag.checks.completions import FLUSHED, completions, tally
from kvdiag.checks.logged import Logged, logged, none_logged, times
from kvdiag.derive.rdma import joined
from kvdiag.model.finding import Finding, Severity

CODE = "WC005"
_CAUSES = ("registration_failed", "queue_failed", "queue_modify_failed", "queue_limit")


def run(hosts: Hosts) -> Outcome:
    flushed = completions(hosts.local, int(FLUSHED))
    if not flushed:
        return none_logged(hosts, "no flushed requests (status 5)")
    explained = [(item, cause) for item in flushed if (cause := _cause(hosts, item)) is not None]
    if len(explained) == len(flushed):
        item, cause = explained[0]
        return Passed(
            f"{times(flushed)} flushed requests, the first at {item.source}, all after {cause.event.text[:80]!r} "
            f"at {cause.event.place}"
        )
    open_ones = tuple(item for item in flushed if _cause(hosts, item) is None)
    devices = tally(open_ones, "device")
    return Failed(
        (
            Finding(
                code=CODE,
                # A consequence never leads: what it follows from is not in the log.
                severity=Severity.INFO,
                subject="engine log",
                summary=(
                    f"{times(open_ones)} request(s){f' on {joined(devices)}' if devices else ''} were flushed "
                    "(status 5); "
                    "what broke the queue pair first is not in this log"
                ),
                evidence=(open_ones[0].evidence("first"),),
                action="give the log of the other side and the kernel's too: kvdiag preflight --log OTHER --log DMESG",
                host=hosts.local.host,
                devices=tuple(sorted(devices)),
            ),
        )
    )


def _cause(hosts: Hosts, flush: Logged) -> Logged | None:
    """Return the first error before a flush: in its own log by position, else any in another log."""
    causes = [
        item
        for item in logged(hosts.local, "completion", *_CAUSES)
        if item.event.kind != "completion" or item.field("status") != FLUSHED
    ]
    here = [item for item in causes if item.log is flush.log and item.event.offset < flush.event.offset]
    elsewhere = [item for item in causes if item.log is not flush.log]
    return next(iter(here or elsewhere), None)


CHECK = Check(
    code=CODE,
    title="flushed requests follow an error that the log shows",
    run=run,
    explained_by=("WC001", "WC004", "WC009", "WC010", "WC012", "WC013"),
)
