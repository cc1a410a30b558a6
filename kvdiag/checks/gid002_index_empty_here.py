"""GID002: a GID index set in the environment is a used slot on every port it applies to, in this namespace."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.environments import NamedEnvironment, environments
from kvdiag.derive.gid_index import GidSetting, advice, gid_settings, roce_ports, set_where
from kvdiag.derive.rdma import attribute, joined, routable_v2
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing, present
from kvdiag.model.rdma import Port, RdmaDevices

CODE = "GID002"


def run(hosts: Hosts) -> Outcome:
    found = environments(hosts.local)
    if isinstance(found, Missing):
        return NotObservable(found.missing)
    settings = {setting: owners for setting, owners in gid_settings(found).items() if setting.index is not None}
    if not settings:
        return NotApplicable("no GID index is set: it is chosen automatically")
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    ports = roce_ports(devices)
    if not ports:
        return NotApplicable("no ACTIVE RoCE port: a GID index has nothing to choose from")
    findings = [
        finding
        for setting, owners in settings.items()
        if (finding := _judge(setting, owners, setting.ports(devices), hosts.local.host)) is not None
    ]
    if findings:
        return Failed(tuple(findings))
    hidden = [port.gids for port in ports if isinstance(port.gids, Missing)]
    if hidden:
        return NotObservable(hidden[0].missing)
    judged = [setting for setting in settings if setting.ports(devices)]
    if not judged:
        return NotApplicable("the device lists let no ACTIVE RoCE port be used")
    return Passed(joined(f"{setting.variable}={setting.value} is in use on every port" for setting in judged))


def _judge(setting: GidSetting, owners: list[NamedEnvironment], chosen: tuple[Port, ...], host: str) -> Finding | None:
    empty = [port for port in chosen if setting.index not in _used(port)]
    if not empty:
        return None
    # UCX opens every port that it may use at start and gives up at the first that fails, NCCL and Mooncake every listed
    # one; where the engine may take another port, a transfer is only at risk.
    everywhere = len(empty) == len(chosen) or setting.devices is not None or setting.variable == "UCX_IB_GID_INDEX"
    return Finding(
        code=CODE,
        severity=Severity.CRITICAL if everywhere else Severity.WARNING,
        subject=setting.variable,
        summary=f"{setting.variable}={setting.value} is an empty slot on {joined(port.name for port in empty)}",
        evidence=(set_where(setting, owners), *(_slots(port, setting.value) for port in empty)),
        action=advice(setting, chosen, owners[0].group),
        host=host,
        devices=tuple(port.device for port in empty),
    )


def _used(port: Port) -> tuple[int, ...]:
    return tuple(gid.index for gid in present(port.gids) or ())


def _slots(port: Port, index: str) -> Evidence:
    best = routable_v2(port)
    return Evidence(
        name=f"{port.name} slots in use",
        value=joined((str(slot) for slot in _used(port)), 16) or "none",
        source=attribute(port, "gids"),
        threshold=f"{index} among them" + (f"; its RoCE v2 address {best[0].gid} is {best[0].index}" if best else ""),
    )


CHECK = Check(code=CODE, title="a configured GID index is in use in this namespace", run=run, explained_by=("GID003",))
