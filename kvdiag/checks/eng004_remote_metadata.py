"""ENG004: NIXL agents can load each other's metadata."""

from kvdiag.checks.base import Check, Failed, Hosts, Outcome
from kvdiag.checks.logged import logged, none_logged, times
from kvdiag.derive.engines import setups
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import present

CODE = "ENG004"
_PARALLEL = ("--tensor-parallel-size", "-tp", "--tp-size", "--tp")


def run(hosts: Hosts) -> Outcome:
    found = logged(hosts.local, "remote_metadata_failed")
    if not found:
        return none_logged(hosts, "no failure to load a remote agent's metadata")
    sizes = [
        (snapshot.host, item.process, item.option(*_PARALLEL) or "1")
        for snapshot in (hosts.local, *hosts.peers)
        for item in present(setups(snapshot)) or ()
        if item.connectors
    ]
    differ = len({size for _, _, size in sizes}) > 1
    return Failed(
        (
            Finding(
                code=CODE,
                # Alone it may be of a peer that is gone; with failed transfers it is what they failed at.
                severity=Severity.WARNING if logged(hosts.local, "kv_transfer_failed") else Severity.INFO,
                subject="engine log",
                summary=(
                    f"NIXL could not load a remote agent's metadata {times(found)} time(s) "
                    f"({found[0].field('status')}); reported for prefill and decode of different tensor parallel size"
                    f"{', as here' if differ else ''}, without an established cause"
                ),
                evidence=(
                    found[0].evidence("first"),
                    *(
                        Evidence(
                            name=f"tensor parallel size on {host}", value=size, source=f"/proc/{process.pid}/cmdline"
                        )
                        for host, process, size in sizes
                    ),
                ),
                action="try both sides with equal tensor parallel size and equal NIXL versions to narrow it down",
                host=hosts.local.host,
            ),
        )
    )


CHECK = Check(
    code=CODE,
    title="remote NIXL metadata can be loaded",
    run=run,
    explained_by=("ENG005", "ENG040", "TRN009", "WC012"),
)
