"""ENG015: where an engine calls its peer dead, the log shows what failed before."""

from kvdiag.checks.base import Check, Failed, Hosts, Outcome, Passed
from kvdiag.checks.completions import peer_host
from kvdiag.checks.logged import Logged, logged, none_logged, times
from kvdiag.derive.rdma import joined
from kvdiag.model.finding import Finding, Severity

CODE = "ENG015"
_CAUSES = (
    "completion",
    "gid_query_failed",
    "nic_disabled",
    "queue_failed",
    "queue_limit",
    "queue_modify_failed",
    "registration_failed",
)


def run(hosts: Hosts) -> Outcome:
    declared = logged(hosts.local, "peer_declared_dead")
    if not declared:
        return none_logged(hosts, "no peer declared dead")
    causes = [cause for item in declared if (cause := _before(hosts, item)) is not None]
    if len(causes) == len(declared):
        first = causes[0]
        return Passed(
            f"{times(declared)} such lines, all after {first.event.kind.replace('_', ' ')} at {first.source}: the peer "
            "is not what failed first"
        )
    peers = joined(dict.fromkeys(peer_host(item) for item in declared if item.field("peer")))
    return Failed(
        (
            Finding(
                code=CODE,
                # "Dead" is what an engine concludes from any failed transfer; it is never the first cause.
                severity=Severity.INFO,
                subject="engine log",
                summary=(
                    f"the engine calls {peers or 'its peer'} dead {times(declared)} time(s); what failed first is not "
                    "in this log, and the process there may well be alive"
                ),
                evidence=(declared[0].evidence("first"),),
                action=(
                    f"look for the first error in the log of {peers or 'the peer'} and above this line: "
                    "kvdiag preflight --log THIS --log THAT"
                ),
                host=hosts.local.host,
            ),
        )
    )


def _before(hosts: Hosts, declared: Logged) -> Logged | None:
    causes = logged(hosts.local, *_CAUSES)
    here = [item for item in causes if item.log is declared.log and item.event.offset < declared.event.offset]
    return next(iter(here or [item for item in causes if item.log is not declared.log]), None)


CHECK = Check(
    code=CODE,
    title="a peer called dead has failed before",
    run=run,
    explained_by=("ENG006", "ENG013", "ENG014", "ENG040", "ENG041", "FAB004", "WC012"),
)
