"""TOP001: a process that is pinned to ports is pinned to those near its GPU."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.device_lists import selects
from kvdiag.derive.environments import NamedEnvironment, environments
from kvdiag.derive.fabric import fabric_ports, hardware_ports
from kvdiag.derive.gpu_distance import Distance, between
from kvdiag.derive.rdma import device_of, joined, unread
from kvdiag.derive.setting import set_variable
from kvdiag.derive.visible_gpus import visible_gpus
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.pci_topology import PciPlace, PciTopology
from kvdiag.model.rdma import Port, RdmaDevices

CODE = "TOP001"


def run(hosts: Hosts) -> Outcome:
    found = environments(hosts.local)
    if isinstance(found, Missing):
        return NotObservable(found.missing)
    pinned = [named for named in found if named.variables.get("UCX_NET_DEVICES", "").strip() not in ("", "all")]
    if not pinned:
        return NotApplicable("no UCX_NET_DEVICES pins a process to ports")
    topology = hosts.local.part(PciTopology)
    if isinstance(topology, Missing):
        return NotObservable(topology.missing)
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    judged: list[str] = []
    findings = []
    for named in pinned:
        for number, gpu in visible_gpus(named.variables, topology):
            allowed = [port for port in hardware_ports(devices) if selects(named.variables["UCX_NET_DEVICES"], port)]
            chosen = _nearest(allowed, gpu, devices, topology)
            best = _nearest(fabric_ports(hosts.local), gpu, devices, topology)
            if chosen is None or best is None:
                continue
            judged.append(f"GPU {number}: {chosen[1].name} {chosen[0].name}")
            if chosen[0] is Distance.SYS and best[0] < Distance.SYS:
                findings.append(_finding(named, number, gpu, chosen, best, hosts.local.host))
    if findings:
        return Failed(tuple(findings))
    hidden = unread(hardware_ports(devices), "rate_gbps", "link_layer")
    if hidden is not None:
        return NotObservable(hidden.missing)
    if topology.unreadable:
        return NotObservable(topology.unreadable)
    if not judged:
        return NotApplicable("no pinned process names its GPUs (CUDA_VISIBLE_DEVICES), or their distance is not known")
    placed = [(port, topology.at(device_of(devices, port).pci_address)) for port in fabric_ports(hosts.local)]
    far = [between(place, gpu) for _, place in placed if place is not None for gpu in topology.gpus]
    unknown = next((distance for distance in far if isinstance(distance, Missing)), None)
    return Passed(joined(judged)) if unknown is None else NotObservable(unknown.missing)


def _nearest(
    ports: "list[Port] | tuple[Port, ...]", gpu: PciPlace, devices: RdmaDevices, topology: PciTopology
) -> tuple[Distance, Port] | None:
    known = []
    for port in ports:
        place = topology.at(device_of(devices, port).pci_address)
        distance = between(place, gpu) if place is not None else None
        if isinstance(distance, Distance):
            known.append((distance, port))
    return min(known, key=lambda item: item[0]) if known else None


def _finding(
    named: NamedEnvironment,
    number: int,
    gpu: PciPlace,
    chosen: tuple[Distance, Port],
    best: tuple[Distance, Port],
    host: str,
) -> Finding:
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=named.subject,
        summary=(
            f"{named.subject} uses GPU {number} and is pinned to {chosen[1].name} on the other NUMA node, although "
            f"{best[1].name} is near ({best[0].name})"
        ),
        evidence=(
            Evidence(name="UCX_NET_DEVICES", value=named.variables["UCX_NET_DEVICES"], source=named.origin),
            Evidence(
                name=f"GPU {number} ({gpu.address}) to {chosen[1].name}",
                value=chosen[0].name,
                source="/sys/bus/pci/devices, numa_node",
                threshold=f"{best[0].name}, as to {best[1].name}",
            ),
        ),
        action=(
            f"for the process of GPU {number}: "
            + set_variable(named.group, "UCX_NET_DEVICES", f"{best[1].device}:{best[1].number}")
        ),
        host=host,
        devices=(chosen[1].device,),
    )


CHECK = Check(code=CODE, title="processes are pinned to ports near their GPU", run=run)
