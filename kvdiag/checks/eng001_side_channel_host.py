"""ENG001: vLLM's NIXL connector tells other hosts an address at which they can reach it."""

import ipaddress

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.rdma import joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.interfaces import NetInterfaces
from kvdiag.model.missing import Missing, present
from kvdiag.model.serving import ServingProcess, ServingProcesses
from kvdiag.model.snapshot import Snapshot

CODE = "ENG001"
_VARIABLE = "VLLM_NIXL_SIDE_CHANNEL_HOST"
_DEFAULT = "localhost"
"""Of vllm/envs.py up to 0.33: then the decode side connects to itself."""


def run(hosts: Hosts) -> Outcome:
    serving = hosts.local.part(ServingProcesses)
    if isinstance(serving, Missing):
        return NotObservable(serving.missing)
    users = [process for process in serving.processes if _uses_nixl(process)]
    if not users:
        return NotApplicable("no vLLM process with the NIXL connector in its command line")
    remote = [peer.host for peer in hosts.peers if peer.host != hosts.local.host]
    hidden = [process.variables for process in users if isinstance(process.variables, Missing)]
    findings = tuple(
        _finding(process, value, remote, hosts.local)
        for process in users
        if (value := _value(process)) is not None and is_local_only(value)
    )
    if findings:
        return Failed(findings)
    if hidden:
        return NotObservable(hidden[0].missing)
    return Passed(joined(f"{process.name}: {_VARIABLE}={_value(process)}" for process in users))


def _uses_nixl(process: ServingProcess) -> bool:
    return process.engine in ("vllm", "dynamo") and any("NixlConnector" in word for word in process.command)


def _value(process: ServingProcess) -> str | None:
    """Return what the process would tell its peers, or None where its environment cannot be seen."""
    if isinstance(process.variables, Missing):
        return None
    return next((item.value for item in process.variables if item.name == _VARIABLE), "") or _DEFAULT


def is_local_only(host: str) -> bool:
    """Return whether a host name or address leads every other host to itself."""
    if host.lower() in ("localhost", "localhost.localdomain"):
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _finding(process: ServingProcess, value: str, remote: list[str], snapshot: Snapshot) -> Finding:
    is_set = any(item.name == _VARIABLE for item in present(process.variables) or ())
    peers = joined(remote) if remote else "decode processes on other hosts"
    return Finding(
        code=CODE,
        # Without a peer this may be a pair on one host, for which localhost is right.
        severity=Severity.CRITICAL if remote else Severity.INFO,
        subject=process.name,
        summary=f"{process.name} gives {value!r} as its NIXL side channel: {peers} would connect to themselves",
        evidence=(
            Evidence(
                name=_VARIABLE,
                value=value if is_set else f"unset (default {_DEFAULT})",
                source=f"/proc/{process.pid}/environ",
                threshold="an address that the peers can reach",
            ),
        ),
        action=f"export {_VARIABLE}={_address(snapshot)} before starting it",
        host=snapshot.host,
    )


def _address(snapshot: Snapshot) -> str:
    """Return this host's first global address, IPv4 before IPv6, of an interface that is up."""
    interfaces = present(snapshot.part(NetInterfaces))
    addresses = [
        ipaddress.ip_address(text)
        for interface in (interfaces.devices if interfaces else ())
        if interface.operstate == "up"
        for text in interface.addresses
    ]
    usable = [address for address in addresses if not address.is_loopback and not address.is_link_local]
    return str(min(usable, key=lambda address: address.version)) if usable else "ADDRESS-OF-THIS-HOST"


CHECK = Check(code=CODE, title="the NIXL side channel can be reached from other hosts", run=run)
