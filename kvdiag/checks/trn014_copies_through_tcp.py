"""TRN014: UCX copies no memory through a TCP interface."""

from kvdiag.checks.base import Check, Failed, Hosts, Outcome
from kvdiag.checks.logged import Logged, logged, none_logged, times
from kvdiag.derive.rdma import active_ports, joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import present
from kvdiag.model.rdma import RdmaDevices

CODE = "TRN014"


def run(hosts: Hosts) -> Outcome:
    found = logged(hosts.local, "ucx_tcp_copy")
    if not found:
        return none_logged(hosts, "no copy through a TCP interface")
    return Failed((_finding(hosts, found),))


def _finding(hosts: Hosts, found: tuple[Logged, ...]) -> Finding:
    interfaces = joined(dict.fromkeys(item.field("device") for item in found))
    rates = [item for item in logged(hosts.local, "ucx_pci_rate") if item.field("rate")]
    devices = present(hosts.local.part(RdmaDevices))
    ports = [port.name for port in active_ports(devices)] if devices else []
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=interfaces,
        summary=(
            f"UCX copies memory through the TCP interface {interfaces} ({times(found)} line(s)): that interface's PCI "
            "link bounds the copy, also within this host"
        ),
        evidence=(
            found[0].evidence("first", threshold="cuda_copy, cuda_ipc, a shared-memory or an RDMA transport"),
            *(item.evidence("what UCX expects of it") for item in rates[:1]),
            Evidence(
                name="ACTIVE ports", value=joined(ports) or "none", source="/sys/class/infiniband/*/ports/*/state"
            ),
        ),
        action=(
            "look which transports UCX has for this memory: ucx_info -d | grep -E 'Transport|memory types'; then start "
            f"the engine with UCX_TLS=^tcp, or UCX_NET_DEVICES without {interfaces}"
        ),
        host=hosts.local.host,
    )


CHECK = Check(code=CODE, title="UCX copies nothing through TCP", run=run, explained_by=("TRN001", "TRN006", "TRN012"))
