"""ENG010: the decode side fetches KV blocks before the prefill side frees them."""

import re

from kvdiag.checks.base import Check, Failed, Hosts, Outcome
from kvdiag.checks.logged import Logged, logged, none_logged, times
from kvdiag.derive.engines import transfer_config, transferring
from kvdiag.derive.setting import group_of, set_variable
from kvdiag.model.engine import EngineSetup
from kvdiag.model.engine_packages import EnginePackages
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing

CODE = "ENG010"
_LEASE_S = 30
"""kv_lease_duration of vLLM 0.22 and later (a heartbeat extends it); 480 s before, 120 s in the first versions."""
_LEASE_SINCE = (0, 22)
_OLD_LEASE, _OLD_LEASE_S = "VLLM_NIXL_ABORT_REQUEST_TIMEOUT", 480


def run(hosts: Hosts) -> Outcome:
    expired = logged(hosts.local, "kv_expired")
    late = logged(hosts.local, "kv_read_after_expiry")
    statistics = logged(hosts.local, "kv_statistics")
    counted = sum(item.event.numbers.get("expired", 0.0) for item in statistics)
    counted_late = sum(item.event.numbers.get("after_expiry", 0.0) for item in statistics)
    if not expired and not late and not counted and not counted_late:
        return none_logged(hosts, "no expired KV blocks")
    requests = max(times(expired), int(counted))
    read_late = max(times(late), int(counted_late))
    nobody = times(tuple(item for item in expired if item.field("retrieved") == "0"))
    if read_late:
        summary = (
            f"KV blocks of {read_late} request(s) were read by decode after prefill had freed them: their answers may "
            "hold another prompt's content"
        )
    else:
        summary = f"prefill freed the KV blocks of {requests} request(s) before decode had fetched them"
        if nobody:
            summary += f" ({nobody} of them by no worker at all: the path may be dead)"
    evidence = [item.evidence("logged") for item in (*expired[:2], *late[:1])]
    if counted or counted_late:
        value = f"{int(counted)} expired, {int(counted_late)} notified after expiry"
        evidence.append(Evidence(name="KV Transfer metrics", value=value, source=statistics[0].source))
    return Failed(
        (
            Finding(
                code=CODE,
                severity=Severity.CRITICAL if read_late else Severity.WARNING,
                subject="engine log",
                summary=summary,
                evidence=(*evidence, *_lease(hosts, expired)),
                action=_action(hosts),
                host=hosts.local.host,
            ),
        )
    )


def _lease(hosts: Hosts, expired: tuple[Logged, ...]) -> tuple[Evidence, ...]:
    said = next((item.field("lease_s") for item in expired if item.field("lease_s")), "")
    if said:
        return (Evidence(name="lease", value=f"{said} s", source=expired[0].source),)
    found = transferring(hosts.local, "nixl")
    for setup in () if isinstance(found, Missing) else found:
        values = [value for connector in setup.connectors if (value := connector.setting("kv_lease_duration"))]
        old = setup.variable(_OLD_LEASE)
        if values:
            return (Evidence(name="kv_lease_duration", value=f"{values[0]} s", source=_command(setup.process.pid)),)
        if isinstance(old, str):
            source = f"/proc/{setup.process.pid}/environ"
            return (Evidence(name=_OLD_LEASE, value=f"{old} s (has no effect since vLLM 0.22)", source=source),)
        value = f"not set (default {_LEASE_S} s since vLLM 0.22, with heartbeats)"
        return (Evidence(name="kv_lease_duration", value=value, source=_command(setup.process.pid)),)
    return ()


def _command(pid: int) -> str:
    return f"/proc/{pid}/cmdline"


def _action(hosts: Hosts) -> str:
    found = transferring(hosts.local, "nixl")
    setups = [] if isinstance(found, Missing) else [item for item in found if item.option("--kv-transfer-config")]
    config = (
        """start prefill with --kv-transfer-config '{..., "kv_connector_extra_config": {"kv_lease_duration": 120}}'"""
    )
    if setups:
        config = _longer(hosts, setups[0])
    return (
        "where decode's queue (vllm:num_requests_waiting) is long, add decode capacity; where its log has failed "
        f"handshakes or transfers, put those right first; else {config}"
    )


def _longer(hosts: Hosts, setup: EngineSetup) -> str:
    """Return how to double the time that prefill keeps blocks, in the words of the version that runs."""
    packages = hosts.local.part(EnginePackages)
    version = None if isinstance(packages, Missing) else packages.of(setup.process.pid).version("vllm")
    known = re.match(r"(\d{1,4})\.(\d{1,4})", version or "")
    old = setup.variable(_OLD_LEASE)
    variable = set_variable(group_of(setup.process), _OLD_LEASE, 2 * _seconds(old, _OLD_LEASE_S))
    if known and (int(known[1]), int(known[2])) < _LEASE_SINCE:
        return f"for vLLM {version}, on prefill: {variable}"
    values = (connector.setting("kv_lease_duration") for connector in setup.connectors)
    lease = 2 * _seconds(next((value for value in values if value), None), 2 * _LEASE_S)
    config = f"start prefill with {transfer_config(setup, kv_lease_duration=lease)}"
    return config if known else f"{config} (before vLLM 0.22, which does not know it: {variable})"


def _seconds(value: object, default: int) -> int:
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 7 else default


CHECK = Check(
    code=CODE,
    title="KV blocks are fetched before they expire",
    run=run,
    explained_by=("ENG001", "ENG005", "ENG012", "ENG013", "ENG040", "FAB004", "WC012"),
)
