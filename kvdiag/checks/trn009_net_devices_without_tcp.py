"""TRN009: where UCX_NET_DEVICES names RDMA ports without mlx5's transports, it leaves UCX a TCP interface too."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.device_lists import device_list, selects
from kvdiag.derive.environments import NamedEnvironment
from kvdiag.derive.fabric import hardware_ports
from kvdiag.derive.rdma import device_of, joined
from kvdiag.derive.setting import set_variable
from kvdiag.derive.ucx_users import ucx_environments
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import Port, RdmaDevices

CODE = "TRN009"
_VARIABLE = "UCX_NET_DEVICES"


def run(hosts: Hosts) -> Outcome:
    found = ucx_environments(hosts.local)
    if isinstance(found, Missing):
        return NotObservable(found.missing)
    listed = [named for named in found if _names(named)]
    if not listed:
        return NotApplicable("no UCX_NET_DEVICES that names devices for an engine that uses UCX")
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    judged = False
    findings = []
    for named in listed:
        ports = [port for port in hardware_ports(devices) if selects(named.variables[_VARIABLE], port)]
        others = [port for port in ports if device_of(devices, port).driver != "mlx5_core"]
        if not ports or not others:
            continue
        judged = True
        if _only_rdma(named, devices):
            findings.append(_finding(named, others, devices, hosts.local.host))
    if findings:
        return Failed(tuple(findings))
    if not judged:
        return NotApplicable("UCX_NET_DEVICES names no ACTIVE port of a card other than NVIDIA's")
    return Passed(joined(f"{named.subject}: {_VARIABLE}={named.variables[_VARIABLE]}" for named in listed))


def _names(named: NamedEnvironment) -> tuple[str, ...]:
    value = named.variables.get(_VARIABLE, "").strip()
    return () if value in ("", "all") or value.startswith("^") else device_list(value)


def _only_rdma(named: NamedEnvironment, devices: RdmaDevices) -> bool:
    """Return whether every entry is an RDMA device; network interfaces carry no port number and no device's name."""
    names = {device.name for device in devices.devices}
    return all(":" in entry or entry in names for entry in _names(named))


def _finding(named: NamedEnvironment, others: list[Port], devices: RdmaDevices, host: str) -> Finding:
    drivers = sorted({str(device_of(devices, port).driver) for port in others})
    value = named.variables[_VARIABLE]
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=named.subject,
        summary=(
            f"{_VARIABLE} leaves UCX no TCP interface, and {joined(drivers)} cards may offer no active messages with "
            "failure handling: NIXL's endpoint to itself then fails at start"
        ),
        evidence=(
            Evidence(name=_VARIABLE, value=value, source=named.origin, threshold="a network interface among them"),
            *(
                Evidence(
                    name=port.name,
                    value=f"driver {device_of(devices, port).driver}",
                    source=f"/sys/class/infiniband/{port.device}/device/driver",
                )
                for port in others
            ),
        ),
        action=set_variable(named.group, _VARIABLE, f"{value.strip().rstrip(',')},lo"),
        host=host,
        devices=tuple(port.device for port in others),
    )


CHECK = Check(code=CODE, title="UCX_NET_DEVICES leaves UCX a transport for itself", run=run)
