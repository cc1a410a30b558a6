"""GID001: a GID index set in the environment leads to a used, routable RoCE v2 slot on every port it applies to."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.environments import NamedEnvironment, environments, selects
from kvdiag.derive.rdma import (
    active_ports,
    attribute,
    device_of,
    is_link_local,
    is_roce,
    is_v2,
    joined,
    routable_v2,
)
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing, present
from kvdiag.model.rdma import Port, RdmaDevices

CODE = "GID001"
_VARIABLES = {
    "MC_GID_INDEX": None,
    "MORI_IB_GID_INDEX": "MORI_RDMA_DEVICES",
    "NCCL_IB_GID_INDEX": "NCCL_IB_HCA",
    "UCX_IB_GID_INDEX": "UCX_NET_DEVICES",
}
"""Each variable with the one that restricts the devices it applies to."""
_AUTOMATIC = ("", "auto", "-1")


@dataclass(frozen=True, slots=True)
class _Setting:
    variable: str
    value: str
    devices: str | None


def run(hosts: Hosts) -> Outcome:
    found = environments(hosts.local)
    if isinstance(found, Missing):
        return NotObservable(found.missing)
    settings = _settings(found)
    if not settings:
        return NotApplicable("no GID index is set: it is chosen automatically")
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    ports = [port for port in active_ports(devices) if is_roce(device_of(devices, port), port)]
    if not ports:
        return NotApplicable("no ACTIVE RoCE port: a GID index has nothing to choose from")
    findings = []
    for setting, owners in settings.items():
        finding = _judge(setting, owners, ports, hosts.local.host)
        if finding is not None:
            findings.append(finding)
    if findings:
        return Failed(tuple(findings))
    hidden = [port.gids for port in ports if isinstance(port.gids, Missing)]
    if hidden:
        return NotObservable(hidden[0].missing)
    return Passed(joined(f"{setting.variable}={setting.value} is a routable RoCE v2 slot" for setting in settings))


def _settings(found: Sequence[NamedEnvironment]) -> dict[_Setting, list[NamedEnvironment]]:
    settings = defaultdict(list)
    for environment in found:
        for variable, restricting in _VARIABLES.items():
            value = environment.variables.get(variable, "").strip()
            if value not in _AUTOMATIC:
                devices = environment.variables.get(restricting) if restricting else None
                settings[_Setting(variable, value, devices)].append(environment)
    return dict(settings)


def _judge(setting: _Setting, owners: list[NamedEnvironment], ports: list[Port], host: str) -> Finding | None:
    set_where = Evidence(
        name=setting.variable,
        value=setting.value,
        source=owners[0].origin + (f" and {len(owners) - 1} more" if len(owners) > 1 else ""),
    )
    chosen = [port for port in ports if selects(setting.devices, port) and not isinstance(port.gids, Missing)]
    if not setting.value.isdecimal():
        return Finding(
            code=CODE,
            severity=Severity.WARNING,
            subject=setting.variable,
            summary=f"{setting.variable} is {setting.value!r}, not a GID index",
            evidence=(set_where,),
            action=_action(setting, chosen),
            host=host,
        )
    bad = [(port, evidence) for port in chosen if (evidence := _fault(port, int(setting.value))) is not None]
    if not bad:
        return None
    broken = [port for port, evidence in bad if "link-local" not in evidence.value]
    everywhere = bool(broken) and (len(broken) == len(chosen) or setting.devices is not None)
    return Finding(
        code=CODE,
        severity=Severity.CRITICAL if everywhere else Severity.WARNING,
        subject=setting.variable,
        summary=(
            f"{setting.variable}={setting.value} chooses no routable RoCE v2 GID on "
            f"{joined(port.name for port, _ in bad)} ({bad[0][1].value})"
        ),
        evidence=(set_where, *(evidence for _, evidence in bad)),
        action=_action(setting, chosen),
        host=host,
        devices=tuple(port.device for port, _ in bad),
    )


def _fault(port: Port, index: int) -> Evidence | None:
    """Return what is wrong with a slot of a port's table, or None where it serves or its type cannot be seen."""
    gid = next((gid for gid in present(port.gids) or () if gid.index == index), None)
    wanted = "RoCE v2, not link-local"
    if gid is None:
        return Evidence(
            name=port.name, value="slot is empty", source=attribute(port, f"gids/{index}"), threshold=wanted
        )
    if isinstance(gid.type, Missing):
        return None
    if not is_v2(gid):
        return Evidence(
            name=port.name, value=gid.type, source=attribute(port, f"gid_attrs/types/{index}"), threshold=wanted
        )
    if is_link_local(gid):
        value = f"link-local {gid.gid}"
        return Evidence(name=port.name, value=value, source=attribute(port, f"gids/{index}"), threshold=wanted)
    return None


def _action(setting: _Setting, ports: Sequence[Port]) -> str:
    best = {port.name: routable_v2(port)[0].index for port in ports if routable_v2(port)}
    if not best:
        return f"give the interface an IP address (kvdiag explain GID003), then: unset {setting.variable}"
    if len(best) == len(ports) and len(set(best.values())) == 1:
        return f"export {setting.variable}={next(iter(best.values()))}"
    slots = joined(f"{name} {index}" for name, index in best.items())
    return f"unset {setting.variable}: the index differs by port ({slots}), so it must be chosen automatically"


CHECK = Check(code=CODE, title="a configured GID index is usable", run=run, explained_by=("GID003",))
