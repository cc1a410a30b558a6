"""FAB011: RoCE traffic that is lost or marked does not run in a priority without flow control."""

import re

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.rdma import SOFTWARE_DRIVERS, active_ports, device_of, is_roce, joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing, present
from kvdiag.model.nic_counters import AllNicCounters, NicCounters
from kvdiag.model.rdma import Port, RdmaCounters, RdmaDevices
from kvdiag.model.roce_qos import RoceQos
from kvdiag.model.snapshot import Snapshot

CODE = "FAB011"
_BYTES = re.compile(r"[rt]x_prio([0-7])_bytes$")
_LOSS = ("local_ack_timeout_err", "out_of_sequence", "packet_seq_err")
_CONGESTION = ("np_cnp_sent", "rp_cnp_handled", "np_ecn_marked_roce_packets")


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    nics = hosts.local.part(AllNicCounters)
    qos = hosts.local.part(RoceQos)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    ports = [
        port
        for port in active_ports(devices)
        if is_roce(device := device_of(devices, port), port) and device.driver not in SOFTWARE_DRIVERS
    ]
    if not ports:
        return NotApplicable("no ACTIVE RoCE port of a card")
    if isinstance(nics, Missing):
        return NotObservable(nics.missing)
    if isinstance(qos, Missing):
        return NotObservable(qos.missing)
    findings = []
    judged = []
    hidden = []
    for port in ports:
        address = device_of(devices, port).pci_address
        pfc = {item.name: item.pfc for item in qos.interfaces}
        for nic in (item for item in nics.interfaces if item.pci_address == address):
            lossless = pfc.get(nic.name, Missing(f"no priorities of {nic.name}"))
            priorities = _bytes(nic)
            if isinstance(lossless, Missing) or not priorities:
                hidden.append(lossless.missing if isinstance(lossless, Missing) else _no_bytes(nic))
                continue
            unread = _unread(hosts.local, port)
            if unread:
                hidden.append(unread)
            judged.append(nic.name)
            signs = _signs(hosts.local, port)
            only_zero = priorities.get(0, 0) > 0 and not any(count for p, count in priorities.items() if p)
            if 0 not in lossless and only_zero and signs:
                findings.append(_finding(port, nic, lossless, priorities, signs, hosts.local.host))
    if findings:
        return Failed(tuple(findings))
    if judged and not hidden:
        return Passed(f"no loss or marking in a priority without flow control: {joined(judged)}")
    return NotObservable(
        hidden[0]
        if hidden
        else f"no interface of the card behind {joined(port.name for port in ports)} is seen, as in a container"
    )


def _bytes(nic: NicCounters) -> dict[int, int]:
    """Return the bytes of each priority, both ways; empty where the card does not count them (guests, most drivers)."""
    found: dict[int, int] = {}
    for name, value in nic.counters.items():
        match = _BYTES.match(name)
        if match:
            found[int(match[1])] = found.get(int(match[1]), 0) + value
    return found


def _no_bytes(nic: NicCounters) -> str:
    return nic.unreadable or f"ethtool -S {nic.name} counts no bytes by priority"


def _unread(local: Snapshot, port: Port) -> str:
    """Return why one of the counters that show loss or congestion gave no number, or ""."""
    counters = present(local.part(RdmaCounters))
    for item in counters.ports if counters else ():
        if (item.device, item.port) == (port.device, port.number):
            keys = (f"hw_counters/{name}" for name in (*_LOSS, *_CONGESTION))
            return next((item.unreadable[key] for key in keys if key in item.unreadable), "")
    return ""


def _signs(local: Snapshot, port: Port) -> dict[str, int]:
    """Return the counters that show loss together with congestion; both must be there."""
    counters = present(local.part(RdmaCounters))
    own = next(
        (
            item.hw_counters
            for item in (counters.ports if counters else ())
            if (item.device, item.port) == (port.device, port.number)
        ),
        {},
    )
    loss = {name: own[name] for name in _LOSS if own.get(name)}
    congestion = {name: own[name] for name in _CONGESTION if own.get(name)}
    return {**loss, **congestion} if loss and congestion else {}


def _finding(
    port: Port,
    nic: NicCounters,
    lossless: tuple[int, ...],
    priorities: dict[int, int],
    signs: dict[str, int],
    host: str,
) -> Finding:
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=nic.name,
        summary=(
            f"all traffic of {nic.name} runs in priority 0, which is not lossless, with timeouts and congestion marks: "
            "consistent with RoCE that loses packets under incast"
        ),
        evidence=(
            Evidence(
                name="bytes by priority",
                value=f"prio0 {priorities[0]}, others 0",
                source=f"ethtool -S {nic.name}",
                threshold="RoCE in a priority with flow control",
            ),
            Evidence(
                name="PFC",
                value=f"on for: {joined(map(str, lossless)) or 'none'}",
                source=f"dcb pfc show dev {nic.name}",
            ),
            *(
                Evidence(
                    name=name,
                    value=str(value),
                    source=f"/sys/class/infiniband/{port.device}/ports/{port.number}/hw_counters/{name}",
                    threshold="0",
                )
                for name, value in signs.items()
            ),
        ),
        action=(
            "agree on a lossless priority with whoever runs the switches; for 3: "
            f"mlnx_qos -i {nic.name} --trust dscp --pfc 0,0,0,1,0,0,0,0; then UCX_IB_TRAFFIC_CLASS=106 (MC_IB_TC=106)"
        ),
        host=host,
        devices=(port.device,),
    )


CHECK = Check(code=CODE, title="congested RoCE traffic has flow control", run=run)
