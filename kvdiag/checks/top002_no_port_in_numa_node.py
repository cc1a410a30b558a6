"""TOP002: every GPU has a fabric port in its own NUMA node."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.fabric import fabric_ports
from kvdiag.derive.gpu_distance import Distance, between
from kvdiag.derive.rdma import device_of, joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.pci_topology import PciPlace, PciTopology
from kvdiag.model.rdma import RdmaDevices

CODE = "TOP002"


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    ports = fabric_ports(hosts.local)
    if not ports:
        return NotApplicable("no ACTIVE RDMA port of hardware")
    topology = hosts.local.part(PciTopology)
    if isinstance(topology, Missing):
        return NotObservable(topology.missing)
    if not topology.gpus and topology.unreadable:
        return NotObservable(topology.unreadable)
    if not topology.gpus:
        return NotApplicable("no GPU on this host")
    far: list[PciPlace] = []
    hidden: Missing | None = None
    for gpu in topology.gpus:
        distances = [
            between(place, gpu)
            for port in ports
            if (place := topology.at(device_of(devices, port).pci_address)) is not None
        ]
        known = [distance for distance in distances if isinstance(distance, Distance)]
        if any(distance < Distance.SYS for distance in known):
            continue
        if not known or len(known) < len(distances):
            hidden = next(
                (item for item in distances if isinstance(item, Missing)), Missing("no port's PCI place is known")
            )
        else:
            far.append(gpu)
    if far:
        names = joined(gpu.address for gpu in far)
        finding = Finding(
            code=CODE,
            severity=Severity.INFO,
            subject=names,
            summary=(
                f"{len(far)} of {len(topology.gpus)} GPUs have no fabric port in their NUMA node: consistent with "
                "public reports of half the card's rate for such GPUs"
            ),
            evidence=(
                Evidence(
                    name="GPUs",
                    value=names,
                    source="/sys/bus/pci/devices/*/numa_node",
                    threshold="a port nearer than SYS",
                ),
                Evidence(
                    name="fabric ports",
                    value=joined(port.name for port in ports),
                    source="/sys/class/infiniband/*/device",
                ),
            ),
            action=(
                "place prefill and decode on the GPUs near a port, and measure what the others get (kvdiag probe kv)"
            ),
            host=hosts.local.host,
        )
        return Failed((finding,))
    if hidden is not None or topology.unreadable:
        return NotObservable(topology.unreadable or (hidden.missing if hidden else ""))
    return Passed(
        f"{len(topology.gpus)} GPUs have one of {joined(port.name for port in ports)} in their NUMA node or nearer"
    )


CHECK = Check(code=CODE, title="GPUs have a port in their NUMA node", run=run)
