"""MTU002: a path MTU set in the environment is at most the active MTU of the ports."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.device_lists import selects
from kvdiag.derive.environments import NamedEnvironment, environments
from kvdiag.derive.path_mtu import PathMtu, active_mtu
from kvdiag.derive.rdma import active_ports, joined, netdev_of
from kvdiag.derive.setting import set_variable
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import Port, RdmaDevices
from kvdiag.model.snapshot import Snapshot

CODE = "MTU002"
_VARIABLES = {"MC_MTU": None, "UCX_IB_PATH_MTU": "UCX_NET_DEVICES"}
"""Each variable with the one that restricts the devices it applies to where the transport in use is not known."""
_SIZES = (256, 512, 1024, 2048, 4096)


def run(hosts: Hosts) -> Outcome:
    found = environments(hosts.local)
    if isinstance(found, Missing):
        return NotObservable(found.missing)
    settings = [(named, name, size) for named in found for name in _VARIABLES if (size := _size(named, name))]
    if not settings:
        return NotApplicable("no path MTU is set: that of the port is used")
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    findings = []
    hidden: list[Missing] = []
    fitting: list[str] = []
    for named, name, size in settings:
        restricting = _VARIABLES[name]
        listed = named.lists.get(name.partition("_")[0] + "_")
        if not named.lists and restricting:
            listed = named.variables.get(restricting)
        smaller = []
        for port in active_ports(devices):
            if not selects(listed, port):
                continue
            mtu = active_mtu(hosts.local, port)
            if isinstance(mtu, Missing):
                hidden.append(mtu)
            elif mtu.bytes < size:
                smaller.append((port, mtu))
            else:
                fitting.append(f"{port.name} {mtu.bytes}")
        if smaller:
            findings.append(_finding(hosts.local, named, name, size, smaller))
    if findings:
        return Failed(tuple(findings))
    if hidden:
        return NotObservable(hidden[0].missing)
    if not fitting:
        return NotApplicable("no ACTIVE RDMA port that the path MTU applies to")
    return Passed(f"{joined(f'{name}={size}' for _, name, size in settings)} fits {joined(fitting)}")


def _size(named: NamedEnvironment, name: str) -> int | None:
    value = named.variables.get(name, "").strip()
    return int(value) if value.isdecimal() and len(value) <= 5 and int(value) in _SIZES else None


def _finding(
    local: Snapshot, named: NamedEnvironment, name: str, size: int, smaller: list[tuple[Port, PathMtu]]
) -> Finding:
    least = min(mtu.bytes for _, mtu in smaller)
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=name,
        summary=(
            f"{name}={size} is above the active MTU of {joined(port.name for port, _ in smaller)} ({least}): "
            "consistent with data packets that are dropped until retries run out"
        ),
        evidence=(
            Evidence(name=name, value=str(size), source=named.origin, threshold=f"at most {least}"),
            *(
                Evidence(name=f"active MTU of {port.name}", value=str(mtu.bytes), source=mtu.source)
                for port, mtu in smaller
            ),
        ),
        action=(
            f"on both ends: {set_variable(named.group, name, least)}; or raise the interface MTU to {size + 96} or "
            f"more ({_raise(smaller)}, and every switch between)"
        ),
        host=local.host,
        devices=tuple(port.device for port, _ in smaller),
    )


def _raise(smaller: list[tuple[Port, PathMtu]]) -> str:
    names = dict.fromkeys(netdev_of(port) or "IFACE" for port, _ in smaller)
    return " && ".join(f"ip link set {name} mtu 9000" for name in names)


CHECK = Check(code=CODE, title="a configured path MTU fits the ports", run=run, explains=("WC012",))
