"""CNT002: the cards show their hardware counters here."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.rdma import SOFTWARE_DRIVERS, active_ports, attribute, device_of, joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing, present
from kvdiag.model.rdma import Port, PortCounters, RdmaCounters, RdmaDevices
from kvdiag.model.rdma_namespace import RdmaNamespace

CODE = "CNT002"


def run(hosts: Hosts) -> Outcome:
    devices, counters = hosts.local.part(RdmaDevices), hosts.local.part(RdmaCounters)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    if isinstance(counters, Missing):
        return NotObservable(counters.missing)
    by_port = {(item.device, item.port): item for item in counters.ports}
    ports = [
        port
        for port in active_ports(devices)
        if device_of(devices, port).driver not in SOFTWARE_DRIVERS and (port.device, port.number) in by_port
    ]
    if not ports:
        return NotApplicable("no ACTIVE port of an RDMA card")
    none = [port for port in ports if not by_port[port.device, port.number].hw_counters]
    unread = {port: _unread(by_port[port.device, port.number]) for port in none}
    blind = [port for port in none if not unread[port]]
    if none and not blind:
        return NotObservable(unread[none[0]])
    if not blind:
        each = [len(by_port[port.device, port.number].hw_counters) for port in ports]
        return Passed(f"{min(each)} or more hardware counters on each of {len(ports)} port(s)")
    if all(device_of(devices, port).is_vf for port in blind):
        return NotObservable(f"{joined(port.name for port in blind)}: a virtual function may have none of its own")
    return Failed((_finding(hosts, blind, by_port, len(ports)),))


def _unread(counted: PortCounters) -> str:
    """Return why a counter that is there gives no number, "" where there is none: that is for CNT004 to find."""
    return next((why for name, why in counted.unreadable.items() if name.startswith("hw_counters/")), "")


def _finding(hosts: Hosts, blind: list[Port], by_port: dict[tuple[str, int], PortCounters], of: int) -> Finding:
    namespace = present(hosts.local.part(RdmaNamespace))
    mode = present(namespace.mode) if namespace else None
    evidence = tuple(
        Evidence(
            name=f"{port.name} hw_counters",
            value=by_port[port.device, port.number].unreadable.get("hw_counters", "empty"),
            source=attribute(port, "hw_counters"),
        )
        for port in blind[:4]
    )
    if mode:
        evidence += (Evidence(name="namespace mode", value=mode, source="rdma system"),)
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=joined(port.name for port in blind),
        summary=(
            f"{len(blind)} of {of} ACTIVE port(s) show no hardware counter here, consistent with a container in "
            "another "
            "network namespace than the card: losses and congestion cannot be seen from here"
        ),
        evidence=evidence,
        action=(
            "read them on the host, or give the card to the pod: rdma system set netns exclusive, and the rdma "
            "CNI plugin"
            if mode != "exclusive"
            else f"rdma dev set {blind[0].device} netns NAME (the pod's), or read them where the card belongs"
        ),
        host=hosts.local.host,
        devices=tuple(port.device for port in blind),
    )


CHECK = Check(code=CODE, title="cards show their hardware counters", run=run, explained_by=("CNT001",))
