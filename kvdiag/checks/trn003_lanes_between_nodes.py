"""TRN003: the lanes that UCX chose between nodes carry KV blocks over RDMA."""

import re

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.checks.logged import Logged, logged, none_logged
from kvdiag.derive.environments import environments
from kvdiag.derive.rdma import SOFTWARE_DRIVERS, active_ports, device_of, joined
from kvdiag.derive.setting import group_here, unset_variable
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import Port, RdmaDevices

CODE = "TRN003"
_LANES = re.compile(r"([a-z_]+)\(([^()]*)\)")
_RDMA = re.compile(r"(rc|dc|ud|gga|srd)_")
_CARRYING = ("rma", "rma_am", "am")
"""Lanes that may carry blocks (`rma_am`: emulated by active messages). TCP in `ka` (keepalive) means nothing."""


def run(hosts: Hosts) -> Outcome:
    found = tuple(item for item in logged(hosts.local, "ucx_lanes") if item.field("where") == "inter-node")
    if not found:
        outcome = none_logged(hosts, "no lanes between nodes")
        return NotApplicable(outcome.examined) if isinstance(outcome, Passed) else outcome
    slow = tuple(item for item in found if not _rdma(item))
    if not slow:
        return Passed(joined((item.field("lanes") for item in found), 2))
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    ports = [
        port
        for port in active_ports(devices)
        if device_of(devices, port).driver not in SOFTWARE_DRIVERS and device_of(devices, port).driver != "efa"
    ]
    if not ports:
        return NotApplicable("no ACTIVE port of an RDMA card that UCX would use")
    return Failed((_finding(hosts, slow, len(found), ports),))


def _rdma(item: Logged) -> list[str]:
    """Return the RDMA transports among the lanes that may carry blocks."""
    return [
        transport
        for lane, transports in _LANES.findall(item.field("lanes"))
        if lane in _CARRYING
        for transport in transports.split()
        if _RDMA.match(transport)
    ]


def _finding(hosts: Hosts, slow: tuple[Logged, ...], of: int, ports: list[Port]) -> Finding:
    found = environments(hosts.local)
    settings = [
        Evidence(name="UCX_TLS", value=value, source=item.source)
        for item in logged(hosts.local, "ucx_settings")
        if (value := item.field("UCX_TLS")) and item.log.path in {entry.log.path for entry in slow}
    ] or [
        Evidence(name="UCX_TLS", value=environment.variables["UCX_TLS"], source=environment.origin)
        for environment in (() if isinstance(found, Missing) else found)
        if "UCX_TLS" in environment.variables
    ]
    asked = any(not _lets_rdma(item.value) for item in settings)
    return Finding(
        code=CODE,
        severity=Severity.WARNING if asked else Severity.CRITICAL,
        subject="UCX",
        summary=(
            f"{len(slow)} of {of} UCX connections to other nodes have no RDMA lane while {len(ports)} RDMA port(s) are "
            f"ACTIVE: KV blocks go over TCP{' (UCX_TLS asks for it)' if asked else ''}"
        ),
        evidence=(
            Evidence(
                name="lanes", value=slow[0].field("lanes"), source=slow[0].source, threshold="rma(rc_*, dc_* or ud_*)"
            ),
            Evidence(
                name="ACTIVE ports",
                value=joined(port.name for port in ports),
                source="/sys/class/infiniband/*/ports/*/state",
            ),
            *settings[:4],
        ),
        action=(
            (f"{unset_variable(group_here(hosts.local), 'UCX_TLS')}, and " if settings else "")
            + "read why RDMA was left out: UCX_LOG_LEVEL=debug <the engine> 2>&1 | grep -E 'rc_|dc_'"
        ),
        host=hosts.local.host,
    )


def _lets_rdma(value: str) -> bool:
    """Return whether a UCX_TLS lets RDMA be used: it names some of it, all, or only what to leave out."""
    words = [word.strip() for word in value.split(",")]
    return value.strip().startswith("^") or any(
        word in ("all", "ib") or re.match(r"rc|dc|ud|gga|srd", word) for word in words
    )


CHECK = Check(
    code=CODE,
    title="UCX's lanes between nodes are RDMA",
    run=run,
    explained_by=("CON001", "CON006", "LIM001", "TRN001", "TRN002", "TRN004", "TRN013"),
)
