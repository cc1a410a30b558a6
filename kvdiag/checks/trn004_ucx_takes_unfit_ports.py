"""TRN004: UCX is not left free to use management, storage or empty RDMA ports beside the fabric's."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.device_lists import selects
from kvdiag.derive.environments import NamedEnvironment
from kvdiag.derive.fabric import fabric_ports, hardware_ports, has_no_gid, ucx_net_devices, unfit
from kvdiag.derive.rdma import attribute, joined, unread
from kvdiag.derive.setting import set_variable
from kvdiag.derive.ucx_users import engine_runs, ucx_environments
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import Port, RdmaDevices

CODE = "TRN004"
_VARIABLE = "UCX_NET_DEVICES"


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    ports = hardware_ports(devices)
    if len(ports) < 2:
        return NotApplicable("fewer than two ACTIVE RDMA ports: there is none to leave out")
    found = ucx_environments(hosts.local)
    if isinstance(found, Missing):
        return NotObservable(found.missing)
    if not found:
        return NotApplicable("no engine here is known to use UCX")
    fabric = fabric_ports(hosts.local)
    if not fabric:
        return NotApplicable("no ACTIVE port is fit for transfers, so there is none to prefer")
    bad = [
        (port, why)
        for port in ports
        if (why := unfit(devices, port)) is not None and any(_lets(named, port) for named in found)
    ]
    if bad:
        return Failed((_finding(hosts, devices, bad, fabric, found),))
    hidden = unread(ports, "gids", "link_layer", "rate_gbps")
    if hidden is not None:
        return NotObservable(hidden.missing)
    return Passed(f"UCX may use {joined(port.name for port in ports if any(_lets(named, port) for named in found))}")


def _lets(named: NamedEnvironment, port: Port) -> bool:
    return selects(named.variables.get(_VARIABLE), port)


def _finding(
    hosts: Hosts,
    devices: RdmaDevices,
    bad: list[tuple[Port, str]],
    fabric: tuple[Port, ...],
    found: tuple[NamedEnvironment, ...],
) -> Finding:
    named = next(named for named in found if any(_lets(named, port) for port, _ in bad))
    # Established: an empty GID table ends UCX at start. A slower port is only likely to be of another fabric.
    fatal = any(has_no_gid(devices, port) for port, _ in bad) and engine_runs(hosts.local)
    names = joined(port.name for port, _ in bad)
    value = ucx_net_devices(devices, fabric)
    return Finding(
        code=CODE,
        severity=Severity.CRITICAL if fatal else Severity.WARNING,
        subject=names,
        summary=f"UCX may use {names} beside the fabric's ports, and {bad[0][0].name} is not fit for it: {bad[0][1]}",
        evidence=(
            Evidence(
                name=_VARIABLE,
                value=named.variables.get(_VARIABLE) or "unset (all)",
                source=named.origin,
                threshold=value,
            ),
            *(_shown(devices, port) for port, _ in bad),
        ),
        action=set_variable(named.group, _VARIABLE, value),
        host=hosts.local.host,
        devices=tuple(port.device for port, _ in bad),
    )


def _shown(devices: RdmaDevices, port: Port) -> Evidence:
    if has_no_gid(devices, port):
        return Evidence(name=port.name, value="0 used GID slots", source=attribute(port, "gids"), threshold="1 or more")
    return Evidence(name=port.name, value=str(port.rate_text), source=attribute(port, "rate"))


CHECK = Check(code=CODE, title="UCX is kept off ports that are not the fabric's", run=run, explains=("GID003",))
