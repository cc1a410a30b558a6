"""PAIR004: both ends use one service level and traffic class, and the same priorities are lossless."""

from collections.abc import Iterator

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.environments import environments
from kvdiag.derive.pairs import used_ports
from kvdiag.derive.rdma import device_of, joined
from kvdiag.derive.setting import group_here, set_variable, unset_variable
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing, present
from kvdiag.model.rdma import RdmaDevices
from kvdiag.model.roce_qos import RoceQos
from kvdiag.model.snapshot import Snapshot

CODE = "PAIR004"
_VARIABLES = ("MC_IB_SL", "MC_IB_TC", "NCCL_IB_SL", "NCCL_IB_TC", "UCX_IB_SL", "UCX_IB_TRAFFIC_CLASS")
_UNSET = "unset"


def run(hosts: Hosts) -> Outcome:
    if not hosts.peers:
        return NotApplicable("no peer given: name one with --peer HOST:PORT")
    ours, findings, compared = _settings(hosts.local), [], 0
    for peer in hosts.peers:
        theirs = _settings(peer)
        both = [name for name in ours if name in theirs]
        compared += len(both)
        differing = [name for name in both if ours[name] != theirs[name]]
        if differing:
            findings.append(_finding(hosts.local, ours, peer, theirs, differing))
    if findings:
        return Failed(tuple(findings))
    if compared:
        return Passed(f"{compared} setting(s) of service level, traffic class and flow control agree")
    hidden = [item for one in (hosts.local, *hosts.peers) if isinstance(item := environments(one), Missing)]
    if hidden:
        return NotObservable(hidden[0].missing)
    return NotApplicable("no service level, traffic class or flow control is set that both ends show")


def _settings(snapshot: Snapshot) -> dict[str, str]:
    """Return by name what both ends should have alike; what cannot be seen is left out."""
    return dict((*_variables(snapshot), *_flow_control(snapshot)))


def _variables(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    named = environments(snapshot)
    if isinstance(named, Missing):
        return
    for variable in _VARIABLES:
        values = sorted({item.variables.get(variable, _UNSET) for item in named})
        yield variable, joined(values)


def _flow_control(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    devices, qos = snapshot.part(RdmaDevices), snapshot.part(RoceQos)
    if isinstance(devices, Missing) or isinstance(qos, Missing):
        return
    for port in present(used_ports(snapshot)) or ():
        interfaces = qos.of(device_of(devices, port).pci_address)
        trust = sorted({item.trust for item in interfaces if isinstance(item.trust, str)})
        lossless = sorted({number for item in interfaces for number in present(item.pfc) or ()})
        if trust:
            yield f"trust of {port.name}", joined(trust)
        if any(not isinstance(item.pfc, Missing) for item in interfaces):
            yield f"lossless priorities of {port.name}", joined(map(str, lossless)) or "none"


def _finding(
    local: Snapshot, ours: dict[str, str], peer: Snapshot, theirs: dict[str, str], differing: list[str]
) -> Finding:
    return Finding(
        code=CODE,
        # Consistent with loss in one direction; whether the switches map both alike cannot be seen from a host.
        severity=Severity.WARNING,
        subject=peer.host,
        summary=(
            f"{local.host} and {peer.host} differ in {joined(differing)}: consistent with one direction being lossy or "
            "in another queue"
        ),
        evidence=tuple(
            Evidence(
                name=name,
                value=f"{ours[name]} here, {theirs[name]} on {peer.host}",
                source="environment of the engine" if name in _VARIABLES else "/sys/class/net/*/qos and dcb pfc show",
                threshold="alike on both ends",
            )
            for name in differing
        ),
        action=_action(peer, ours, differing),
        host=local.host,
    )


def _action(peer: Snapshot, ours: dict[str, str], differing: list[str]) -> str:
    group = group_here(peer)
    exports = [
        unset_variable(group, name) if ours[name] == _UNSET else set_variable(group, name, ours[name])
        for name in differing
        if name in _VARIABLES
    ]
    if exports:
        return f"on {peer.host}, to have it as here: {'; '.join(exports)}"
    return "configure both interfaces alike: mlnx_qos -i IFACE --trust dscp --pfc 0,0,0,1,0,0,0,0 (priority 3 lossless)"


CHECK = Check(code=CODE, title="service level, traffic class and flow control are alike on both ends", run=run)
