"""ENG031: transfers fit into the send queue."""

from kvdiag.checks.base import Check, Failed, Hosts, Outcome
from kvdiag.checks.logged import logged, none_logged, times
from kvdiag.model.finding import Evidence, Finding, Severity

CODE = "ENG031"


def run(hosts: Hosts) -> Outcome:
    found = logged(hosts.local, "send_queue_full")
    if not found:
        return none_logged(hosts, "no full send queue")
    most = found[0].field("most")
    return Failed(
        (
            Finding(
                code=CODE,
                severity=Severity.WARNING,
                subject="engine log",
                summary=(
                    f"the send queue was full {times(found)} time(s): more was posted at once than it holds ({most})"
                ),
                evidence=(
                    found[0].evidence("first"),
                    Evidence(
                        name="depth", value=found[0].field("depth"), source=found[0].source, threshold=f"below {most}"
                    ),
                ),
                action=(
                    "lower the number of transfers at a time (prefill batch or concurrency), or spread them: "
                    "more queue "
                    "pairs per transfer (MoRI-IO: qp_per_transfer) or larger blocks"
                ),
                host=hosts.local.host,
            ),
        )
    )


CHECK = Check(code=CODE, title="transfers fit into the send queue", run=run, explains=("ENG012",))
