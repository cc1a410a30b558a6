"""TRN006: UCX_TLS leaves UCX the RDMA transports of this host."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.environments import NamedEnvironment
from kvdiag.derive.fabric import hardware_ports
from kvdiag.derive.rdma import device_of, joined
from kvdiag.derive.setting import set_variable, unset_variable
from kvdiag.derive.ucx_users import ucx_environments
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import Port, RdmaDevices

CODE = "TRN006"
_VARIABLE = "UCX_TLS"
_RDMA = (
    "all",
    "ib",
    "rc",
    "rc_x",
    "rc_v",
    "rc_verbs",
    "rc_mlx5",
    "rc_gda",
    "dc",
    "dc_x",
    "dc_mlx5",
    "ud",
    "ud_x",
    "ud_v",
)
_RDMA_MORE = ("ud_verbs", "ud_mlx5", "gga_mlx5", "srd")
"""Transports and aliases of UCX 1.12 to 1.23 (ucx_info -f, UCX_TLS) that reach another host over RDMA."""
_EVERY_RDMA = frozenset({"rc", "dc", "ud"})


def run(hosts: Hosts) -> Outcome:
    found = ucx_environments(hosts.local)
    if isinstance(found, Missing):
        return NotObservable(found.missing)
    listed = [named for named in found if named.variables.get(_VARIABLE, "").strip() not in ("", "all")]
    if not listed:
        return NotApplicable("no UCX_TLS is set for an engine that uses UCX: it may use every transport")
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    ports = [port for port in hardware_ports(devices) if device_of(devices, port).driver != "efa"]
    if not ports:
        return NotApplicable("no ACTIVE RDMA port that UCX would use")
    findings = [finding for named in listed if (finding := _judge(named, ports, hosts.local.host)) is not None]
    if findings:
        return Failed(tuple(findings))
    return Passed(joined(f"{named.subject}: {_VARIABLE}={named.variables[_VARIABLE]}" for named in listed))


def _judge(named: NamedEnvironment, ports: list[Port], host: str) -> Finding | None:
    value = named.variables[_VARIABLE].strip()
    names = {part.strip() for part in value.lstrip("^").split(",")}
    rdma = names & {*_RDMA, *_RDMA_MORE}
    if value.startswith("^"):
        shut = "ib" in names or names >= _EVERY_RDMA
        tcp = False
    else:
        shut = not rdma
        tcp = "tcp" in names and "all" not in names
    if shut:
        summary = (
            f"{_VARIABLE}={value} shuts out every RDMA transport: TCP carries all, past {len(ports)} ACTIVE port(s)"
        )
        rest = ",".join(name for name in value.split(",") if name.strip() != "tcp")
        action = unset_variable(named.group, _VARIABLE)
        if not value.startswith("^"):
            action += f", or: {set_variable(named.group, _VARIABLE, f'rc,{rest}' if rest else 'rc,sm,self')}"
        severity = Severity.WARNING
    elif tcp:
        summary = (
            f"{_VARIABLE}={value} allows TCP beside RDMA: if a transfer falls back to it, nothing fails and it is slow "
            "(consistent with public reports of TTFT of many seconds)"
        )
        action = "look which lanes UCX chose: UCX_LOG_LEVEL=info UCX_PROTO_INFO=y, lines with cfg#"
        severity = Severity.INFO
    else:
        return None
    return Finding(
        code=CODE,
        severity=severity,
        subject=named.subject,
        summary=summary,
        evidence=(
            Evidence(name=_VARIABLE, value=value, source=named.origin, threshold="rc, dc or ib" if shut else None),
            Evidence(
                name="ACTIVE ports",
                value=joined(port.name for port in ports),
                source="/sys/class/infiniband/*/ports/*/state",
            ),
        ),
        action=action,
        host=host,
    )


CHECK = Check(code=CODE, title="UCX_TLS leaves UCX its RDMA transports", run=run, explains=("TRN003",))
