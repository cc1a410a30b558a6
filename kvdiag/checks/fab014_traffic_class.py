"""FAB014: the traffic class that an engine asks for is the one that its packets get."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.environments import NamedEnvironment, environments
from kvdiag.derive.rdma import active_ports, device_of, is_roce, joined
from kvdiag.derive.setting import set_variable
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import RdmaDevices
from kvdiag.model.roce_qos import InterfaceQos, RoceQos

CODE = "FAB014"
_NAMES = ("MC_IB_TC", "NCCL_IB_TC", "UCX_IB_TRAFFIC_CLASS")


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    qos = hosts.local.part(RoceQos)
    named = environments(hosts.local)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    used = dict.fromkeys(port.device for port in active_ports(devices) if is_roce(device_of(devices, port), port))
    if not used:
        return NotApplicable("no ACTIVE RoCE port")
    if isinstance(named, Missing):
        return NotObservable(named.missing)
    asked = [(environment, *item) for environment in named for item in _asked(environment)]
    if not asked:
        return NotApplicable(f"no traffic class is asked for ({', '.join(_NAMES)})")
    if isinstance(qos, Missing):
        return NotObservable(qos.missing)
    forced = {item.device: item.traffic_class for item in qos.devices if item.device in used}
    findings = []
    for environment, name, value in asked:
        # The lower two bits are ECN's; what the fabric sorts by is the DSCP above them.
        other = {device: tc for device, tc in forced.items() if isinstance(tc, int) and tc >> 2 != value >> 2}
        if other:
            findings.append(_overridden(environment, name, value, other, hosts.local.host))
            continue
        addresses = {device_of(devices, port).pci_address for port in active_ports(devices) if port.device in used}
        lossy = [item for item in qos.interfaces if item.pci_address in addresses and _misses(item, value)]
        if lossy:
            findings.append(_lossy(environment, name, value, lossy, hosts.local.host))
    if findings:
        return Failed(tuple(findings))
    hidden = [tc for tc in forced.values() if isinstance(tc, Missing)]
    if hidden:
        return NotObservable(hidden[0].missing)
    return Passed(joined(f"{name}={value} of {environment.subject}" for environment, name, value in asked))


def _asked(environment: NamedEnvironment) -> list[tuple[str, int]]:
    found = ((name, environment.variables.get(name, "").strip()) for name in _NAMES)
    return [(name, int(value)) for name, value in found if value.isdecimal() and len(value) <= 3]


def priority(traffic_class: int) -> int:
    """Return the priority of a traffic class by the default map: DSCP is its upper six bits (RFC 2474), and each eight
    DSCP values share a priority.
    """
    return traffic_class >> 2 >> 3


def _misses(interface: InterfaceQos, traffic_class: int) -> bool:
    """Return whether trusted DSCP puts the class into a priority without flow control while another has it."""
    return (
        interface.trust == "dscp"
        and not isinstance(interface.pfc, Missing)
        and bool(interface.pfc)
        and priority(traffic_class) not in interface.pfc
    )


def _overridden(environment: NamedEnvironment, name: str, value: int, other: dict[str, int], host: str) -> Finding:
    device, forced = next(iter(other.items()))
    path = f"/sys/class/infiniband/{device}/tc/1/traffic_class"
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=environment.subject,
        summary=f"{name}={value} has no effect: the administrator forces traffic class {forced} on {joined(other)}",
        evidence=(
            Evidence(name=name, value=str(value), source=environment.origin, threshold=str(forced)),
            Evidence(name="traffic_class", value=f"Global tclass={forced}", source=path, threshold=str(value)),
        ),
        action=(
            f"{set_variable(environment.group, name, forced)}; or lift the rule where the fabric allows it: "
            + " && ".join(f"echo -1 > /sys/class/infiniband/{device}/tc/1/traffic_class" for device in other)
        ),
        host=host,
        devices=tuple(other),
    )


def _lossy(environment: NamedEnvironment, name: str, value: int, lossy: list[InterfaceQos], host: str) -> Finding:
    first = lossy[0]
    assert not isinstance(first.pfc, Missing)
    wanted = first.pfc[0]
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=environment.subject,
        summary=(
            f"{name}={value} is DSCP {value >> 2}, by default priority {priority(value)}, and flow control is on for "
            f"priority {', '.join(map(str, first.pfc))} of {joined(item.name for item in lossy)}: consistent with KV "
            "traffic outside the lossless priority"
        ),
        evidence=(
            Evidence(name=name, value=str(value), source=environment.origin),
            Evidence(
                name="PFC",
                value=f"priority {', '.join(map(str, first.pfc))}",
                source=f"dcb pfc show dev {first.name}",
                threshold=f"priority {priority(value)}",
            ),
        ),
        action=(
            f"compare with the fabric's map (dcb app show dev {first.name} dscp-prio); by the default map "
            f"{name}={((wanted * 8 + 2) << 2) + 2} is priority {wanted}"
        ),
        host=host,
    )


CHECK = Check(code=CODE, title="the traffic class asked for takes effect", run=run)
