"""TRN008: Mooncake that is configured for TCP is also kept from taking the RDMA cards."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.engines import transferring
from kvdiag.derive.rdma import joined
from kvdiag.derive.setting import group_of, set_variable
from kvdiag.model.engine import EngineSetup
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import RdmaDevices

CODE = "TRN008"
_OFF = ("", "0", "false")


def run(hosts: Hosts) -> Outcome:
    engines = transferring(hosts.local, "mooncake")
    if isinstance(engines, Missing):
        return NotObservable(engines.missing)
    over_tcp = [(engine, where) for engine in engines if (where := _tcp(engine)) is not None]
    if not over_tcp:
        return NotApplicable("no Mooncake connector here is configured for TCP")
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    if not devices.devices:
        return NotApplicable("no RDMA device that Mooncake could take instead of TCP")
    hidden = next((engine.variables for engine, _ in over_tcp if isinstance(engine.variables, Missing)), None)
    if hidden is not None:
        return NotObservable(hidden.missing)
    names = joined(device.name for device in devices.devices)
    findings = tuple(
        _finding(engine, where, names, hosts.local.host)
        for engine, where in over_tcp
        if str(engine.variable("MC_FORCE_TCP") or "").lower() in _OFF
    )
    if findings:
        return Failed(findings)
    return Passed(
        joined(f"{engine.process.name}: MC_FORCE_TCP={engine.variable('MC_FORCE_TCP')}" for engine, _ in over_tcp)
    )


def _tcp(engine: EngineSetup) -> Evidence | None:
    """Return where TCP is configured, or None where it is not; SGLang's own mooncake_tcp sets MC_FORCE_TCP itself."""
    for connector in engine.connectors:
        if connector.library == "mooncake" and connector.protocol == "tcp" and connector.name != "mooncake_tcp":
            return Evidence(
                name=f"protocol of {connector.name}", value="tcp", source=f"/proc/{engine.process.pid}/cmdline"
            )
    variable = engine.variable("MOONCAKE_PROTOCOL")
    if isinstance(variable, str) and variable.lower() == "tcp":
        return Evidence(name="MOONCAKE_PROTOCOL", value=variable, source=f"/proc/{engine.process.pid}/environ")
    return None


def _finding(engine: EngineSetup, where: Evidence, names: str, host: str) -> Finding:
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=engine.process.name,
        summary=(
            "Mooncake is configured for TCP on a host with RDMA devices: older releases install RDMA all the same, and "
            "every transfer fails while requests still return 200"
        ),
        evidence=(
            where,
            Evidence(name="MC_FORCE_TCP", value="unset", source=f"/proc/{engine.process.pid}/environ", threshold="1"),
            Evidence(name="RDMA devices", value=names, source="/sys/class/infiniband"),
        ),
        action=f"on every node: {set_variable(group_of(engine.process), 'MC_FORCE_TCP', 1)}",
        host=host,
    )


CHECK = Check(code=CODE, title="a Mooncake that is to use TCP is told so twice", run=run)
