"""CNT004: every counter file that is listed can be read."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.checks.cnt003_counter_without_value import NO_VALUE
from kvdiag.derive.rdma import joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import RdmaCounters

CODE = "CNT004"
_BYTES = ("port_xmit_data", "port_rcv_data", "tx_bytes", "rx_bytes")


def run(hosts: Hosts) -> Outcome:
    counters = hosts.local.part(RdmaCounters)
    if isinstance(counters, Missing):
        return NotObservable(counters.missing)
    number = sum(len(item.counters) + len(item.hw_counters) for item in counters.ports)
    failed = [
        (item, name, why)
        for item in counters.ports
        for name, why in sorted(item.unreadable.items())
        # A whole folder that is absent is CNT002's.
        if "/" in name and not why.endswith(NO_VALUE)
    ]
    if not failed and not number:
        return NotApplicable("no RDMA port with counters")
    if not failed:
        return Passed(f"{number} counters of {len(counters.ports)} port(s) can be read")
    blind = [name for _, name, _ in failed if name.rpartition("/")[2] in _BYTES]
    ports = dict.fromkeys(f"{item.device}/{item.port}" for item, _, _ in failed)
    return Failed(
        (
            Finding(
                code=CODE,
                severity=Severity.WARNING if blind else Severity.INFO,
                subject=joined(ports),
                summary=(
                    f"{len(failed)} of {number + len(failed)} counters cannot be read"
                    f"{': bytes on these ports cannot be seen' if blind else ''}; an exporter that stops at the first "
                    "error loses all metrics of the node"
                ),
                evidence=tuple(
                    Evidence(
                        name=f"{item.device}/{item.port} {name}",
                        value=why,
                        source=f"/sys/class/infiniband/{item.device}/ports/{item.port}/{name}",
                    )
                    for item, name, why in failed[:4]
                ),
                action=(
                    "check that the other ports' metrics are there: curl -s localhost:9100/metrics | grep -c "
                    "node_infiniband; where they are not, update node_exporter or start it with "
                    "--no-collector.infiniband and use kvdiag exporter, which reads each file by itself"
                ),
                host=hosts.local.host,
                devices=tuple(dict.fromkeys(item.device for item, _, _ in failed)),
            ),
        )
    )


CHECK = Check(code=CODE, title="every counter can be read", run=run, explained_by=("CNT001",))
