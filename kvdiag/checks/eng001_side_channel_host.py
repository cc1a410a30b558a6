"""ENG001: vLLM's NIXL connector tells other hosts an address at which they can reach it."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.checks.logged import Logged, logged, unread_log
from kvdiag.derive.addresses import address_of, is_local_only
from kvdiag.derive.engines import transferring
from kvdiag.derive.rdma import joined
from kvdiag.derive.setting import group_of, set_variable
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing, present
from kvdiag.model.serving import ServingProcess
from kvdiag.model.snapshot import Snapshot

CODE = "ENG001"
_VARIABLE = "VLLM_NIXL_SIDE_CHANNEL_HOST"
_DEFAULT = "localhost"
"""Of vllm/envs.py up to 0.33: then the decode side connects to itself."""
_DYNAMO = "(chosen by Dynamo)"
"""Dynamo sets an unset variable to the host's routable address inside its worker (dynamo/vllm/args.py)."""


def run(hosts: Hosts) -> Outcome:
    outcome = _judge(hosts)
    met = _met(hosts.local)
    if met and not isinstance(outcome, Failed):
        return Failed((_logged(hosts, met),))
    unread = unread_log(hosts.local)
    return NotObservable(unread) if unread is not None and isinstance(outcome, Passed) else outcome


def _judge(hosts: Hosts) -> Outcome:
    found = transferring(hosts.local, "nixl")
    if isinstance(found, Missing):
        return NotObservable(found.missing)
    users = [item.process for item in found if item.process.engine in ("vllm", "dynamo")]
    if not users:
        return NotApplicable("no vLLM process with the NIXL connector in its command line")
    remote = [peer.host for peer in hosts.peers if peer.host != hosts.local.host]
    hidden = [process.variables for process in users if isinstance(process.variables, Missing)]
    met = _met(hosts.local)
    findings = tuple(
        _finding(process, value, remote, hosts.local, met)
        for process in users
        if (value := _value(process)) is not None and is_local_only(value)
    )
    if findings:
        return Failed(findings)
    if hidden:
        return NotObservable(hidden[0].missing)
    return Passed(joined(f"{process.name}: {_VARIABLE}={_value(process)}" for process in users))


def _value(process: ServingProcess) -> str | None:
    """Return what the process would tell its peers, or None where its environment cannot be seen."""
    if isinstance(process.variables, Missing):
        return None
    value = next((item.value for item in process.variables if item.name == _VARIABLE), "")
    return value or (_DYNAMO if process.engine == "dynamo" else _DEFAULT)


def _met(snapshot: Snapshot) -> tuple[Logged, ...]:
    """Return the lines that say that a decode process asked itself, or nobody, for its peer's metadata."""
    failures = logged(snapshot, "kv_transfer_failed")
    alone = tuple(item for item in failures if item.field("peer") and is_local_only(item.field("peer")))
    return (*logged(snapshot, "engine_id_mismatch", "loopback_refused"), *alone)


def _logged(hosts: Hosts, met: tuple[Logged, ...]) -> Finding:
    # The processes here name an address, or none can be seen: it is the far side that gives its own away.
    return Finding(
        code=CODE,
        severity=Severity.CRITICAL,
        subject="engine log",
        summary="handshakes led to the wrong engine: the prefill side gives an address that leads back here",
        evidence=tuple(item.evidence("logged") for item in met[:3]),
        action=f"on the prefill hosts: export {_VARIABLE}=ADDRESS-OF-THAT-HOST before starting vLLM",
        host=hosts.local.host,
    )


def _finding(
    process: ServingProcess, value: str, remote: list[str], snapshot: Snapshot, met: tuple[Logged, ...]
) -> Finding:
    is_set = any(item.name == _VARIABLE for item in present(process.variables) or ())
    peers = joined(remote) if remote else "decode processes on other hosts"
    themselves = "itself" if len(remote) == 1 else "themselves"
    return Finding(
        code=CODE,
        # Without a peer this may be a pair on one host, for which localhost is right; a log may show that it was not.
        severity=Severity.CRITICAL if remote or met else Severity.INFO,
        subject=process.name,
        summary=f"{process.name} gives {value!r} as its NIXL side channel: {peers} would connect to {themselves}",
        evidence=(
            Evidence(
                name=_VARIABLE,
                value=value if is_set else f"unset (default {_DEFAULT})",
                source=f"/proc/{process.pid}/environ",
                threshold="an address that the peers can reach",
            ),
            *(item.evidence("logged") for item in met[:3]),
        ),
        action=set_variable(group_of(process), _VARIABLE, address_of(snapshot)),
        host=snapshot.host,
    )


CHECK = Check(
    code=CODE,
    title="the NIXL side channel can be reached from other hosts",
    run=run,
    explains=("ENG010", "ENG012", "ENG013"),
)
