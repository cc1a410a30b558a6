"""TRN001: UCX offers an RDMA transport on a host whose RDMA ports are ACTIVE."""

import re

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.rdma import active_ports, device_of, joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import Port, RdmaDevices
from kvdiag.model.ucx import UcxTransports

CODE = "TRN001"
_RDMA_TRANSPORT = re.compile(r"(rc|dc|ud|gga|srd)(_|$)")


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    # On EFA, NIXL and Mooncake go through libfabric.
    ports = [port for port in active_ports(devices) if device_of(devices, port).driver != "efa"]
    if not ports:
        return NotApplicable("no ACTIVE RDMA port that UCX would use")
    ucx = hosts.local.part(UcxTransports)
    if isinstance(ucx, Missing):
        return NotObservable(ucx.missing)
    rdma = [transport for transport in ucx.transports if _RDMA_TRANSPORT.match(transport.name)]
    usable = sorted({f"{transport.name}/{transport.device}" for transport in rdma if transport.usable})
    if usable:
        return Passed(f"UCX offers {joined(usable, 4)}")
    return Failed((_finding(ports, ucx, bool(rdma), hosts.local.host),))


def _finding(ports: list[Port], ucx: UcxTransports, listed: bool, host: str) -> Finding:
    offered = joined(dict.fromkeys(transport.name for transport in ucx.transports))
    if listed:
        summary = f"{len(ports)} RDMA port(s) are ACTIVE, but UCX fails to open every RDMA transport"
        action = (
            "read why: UCX_LOG_LEVEL=debug ucx_info -d; memory lock limit and /dev/infiniband are the usual reasons"
        )
    else:
        summary = f"{len(ports)} RDMA port(s) are ACTIVE, but UCX offers none of them: transfers go over TCP"
        action = (
            "install a UCX with its InfiniBand module (libuct_ib.so): the distribution's ucx packages, "
            "or a build configured --with-verbs; then: ucx_info -d | grep -E 'rc_|dc_'"
        )
    return Finding(
        code=CODE,
        severity=Severity.CRITICAL,
        subject="UCX",
        summary=summary,
        evidence=(
            Evidence(
                name="transports", value=offered, source=f"ucx_info -d ({ucx.origin})", threshold="rc_*, dc_* or ud_*"
            ),
            Evidence(
                name="ACTIVE ports",
                value=joined(port.name for port in ports),
                source="/sys/class/infiniband/*/ports/*/state",
            ),
        ),
        action=action,
        host=host,
        devices=tuple(port.device for port in ports),
    )


CHECK = Check(code=CODE, title="UCX offers an RDMA transport", run=run, explained_by=("CON001", "CON006"))
