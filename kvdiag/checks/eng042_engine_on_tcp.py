"""ENG042: an engine on a host with RDMA does not move KV blocks over TCP."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.checks.logged import Logged, logged, none_logged
from kvdiag.derive.rdma import SOFTWARE_DRIVERS, active_ports, device_of, joined
from kvdiag.derive.setting import group_here, set_variable
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import RdmaDevices
from kvdiag.model.snapshot import Snapshot

CODE = "ENG042"


def run(hosts: Hosts) -> Outcome:
    installed = logged(hosts.local, "tcp_installed")
    if not installed:
        return none_logged(hosts, "no engine says that it uses TCP")
    chosen = {item.log.path for item in logged(hosts.local, "protocol") if item.field("protocol") == "tcp"}
    fallen = tuple(item for item in installed if item.log.path not in chosen)
    if not fallen:
        return NotApplicable("Mooncake was told to use TCP")
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    ports = [port for port in active_ports(devices) if device_of(devices, port).driver not in SOFTWARE_DRIVERS]
    if not ports:
        return NotApplicable("no ACTIVE port of an RDMA card: TCP is what there is")
    paths = {item.log.path for item in fallen}
    none_found = [item for item in logged(hosts.local, "no_rdma_device") if item.log.path in paths]
    if not none_found:
        return Passed("Mooncake installs TCP beside RDMA here")
    return Failed((_finding(hosts.local, fallen[0], none_found[0], [port.name for port in ports]),))


def _finding(snapshot: Snapshot, tcp: Logged, none_found: Logged, ports: list[str]) -> Finding:
    return Finding(
        code=CODE,
        severity=Severity.CRITICAL,
        subject="Mooncake",
        summary=f"{len(ports)} RDMA port(s) are ACTIVE, but Mooncake found no card and moves KV blocks over TCP",
        evidence=(
            none_found.evidence("found"),
            tcp.evidence("installed"),
            Evidence(name="ACTIVE ports", value=joined(ports), source="/sys/class/infiniband/*/ports/*/state"),
        ),
        action=(
            f"{set_variable(group_here(snapshot), 'MC_FORCE_HCA', 1)}, so that it fails instead of falling back; then "
            f"compare its device list with {joined(dict.fromkeys(name.partition('/')[0] for name in ports))}"
        ),
        host=snapshot.host,
    )


CHECK = Check(
    code=CODE,
    title="no engine has fallen back to TCP",
    run=run,
    explained_by=("CON001", "CON002", "CON006", "TRN002", "TRN013"),
)
