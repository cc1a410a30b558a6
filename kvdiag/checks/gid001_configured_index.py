"""GID001: a GID index set in the environment leads to a routable RoCE v2 slot on every port it applies to."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.environments import NamedEnvironment, environments
from kvdiag.derive.gid_index import GidSetting, advice, gid_settings, roce_ports, set_where
from kvdiag.derive.rdma import attribute, is_link_local, is_v2, joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing, present
from kvdiag.model.rdma import Gid, Port, RdmaDevices

CODE = "GID001"


def run(hosts: Hosts) -> Outcome:
    found = environments(hosts.local)
    if isinstance(found, Missing):
        return NotObservable(found.missing)
    settings = gid_settings(found)
    if not settings:
        return NotApplicable("no GID index is set: it is chosen automatically")
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    ports = roce_ports(devices)
    if not ports:
        return NotApplicable("no ACTIVE RoCE port: a GID index has nothing to choose from")
    findings = []
    for setting, owners in settings.items():
        finding = _judge(setting, owners, setting.ports(devices), hosts.local.host)
        if finding is not None:
            findings.append(finding)
    if findings:
        return Failed(tuple(findings))
    slots = (_slot(port, setting.index) for setting in settings for port in setting.ports(devices))
    hidden = [port.gids for port in ports if isinstance(port.gids, Missing)]
    hidden += [slot.type for slot in slots if slot is not None and isinstance(slot.type, Missing)]
    if hidden:
        return NotObservable(hidden[0].missing)
    judged = [
        setting
        for setting in settings
        if any(_slot(port, setting.index) is not None for port in setting.ports(devices))
    ]
    if not judged:
        return NotApplicable("no configured GID index is in use on a port (GID002)")
    return Passed(joined(f"{setting.variable}={setting.value} is a routable RoCE v2 slot" for setting in judged))


def _judge(setting: GidSetting, owners: list[NamedEnvironment], chosen: tuple[Port, ...], host: str) -> Finding | None:
    index = setting.index
    if index is None:
        return Finding(
            code=CODE,
            severity=Severity.WARNING,
            subject=setting.variable,
            summary=f"{setting.variable} is {setting.value!r}, not a GID index",
            evidence=(set_where(setting, owners),),
            action=advice(setting, chosen, owners[0].group),
            host=host,
        )
    bad = [(port, evidence) for port in chosen if (evidence := _fault(port, index)) is not None]
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
        evidence=(set_where(setting, owners), *(evidence for _, evidence in bad)),
        action=advice(setting, chosen, owners[0].group),
        host=host,
        devices=tuple(port.device for port, _ in bad),
    )


def _slot(port: Port, index: int | None) -> Gid | None:
    return next((gid for gid in present(port.gids) or () if gid.index == index), None)


def _fault(port: Port, index: int) -> Evidence | None:
    """Return what is wrong with a used slot of a port's table, or None where it serves or its type cannot be seen."""
    gid = _slot(port, index)
    if gid is None:
        return None
    wanted = "RoCE v2, not link-local"
    if isinstance(gid.type, str) and not is_v2(gid):
        return Evidence(
            name=port.name, value=gid.type, source=attribute(port, f"gid_attrs/types/{index}"), threshold=wanted
        )
    if is_link_local(gid):
        value = f"link-local {gid.gid}"
        return Evidence(name=port.name, value=value, source=attribute(port, f"gids/{index}"), threshold=wanted)
    return None


CHECK = Check(code=CODE, title="a configured GID index is a routable RoCE v2 GID", run=run, explained_by=("GID003",))
