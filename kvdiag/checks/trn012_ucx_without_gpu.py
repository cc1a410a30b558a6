"""TRN012: UCX can handle the memory of the GPUs that this host has."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.rdma import joined
from kvdiag.derive.ucx_users import ucx_environments
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.pci import PciFunctions
from kvdiag.model.ucx import UcxTransports

CODE = "TRN012"
_KINDS = {"nvidia": "cuda", "amdgpu": "rocm"}
"""The name of UCX's modules, transports (cuda_copy, rocm_ipc, …) and memory type, by the GPU's kernel driver."""


def run(hosts: Hosts) -> Outcome:
    functions = hosts.local.part(PciFunctions)
    if isinstance(functions, Missing):
        return NotObservable(functions.missing)
    drivers = {item.driver for item in functions.functions if item.base_class in (0x03, 0x12)}
    kinds = [kind for driver, kind in _KINDS.items() if driver in drivers]
    if not kinds and functions.unread:
        return NotObservable(functions.unread)
    if not kinds:
        return NotApplicable("no GPU with its driver on this host")
    users = ucx_environments(hosts.local)
    if isinstance(users, Missing):
        return NotObservable(users.missing)
    if not users:
        return NotApplicable("no engine here is known to use UCX")
    ucx = hosts.local.part(UcxTransports)
    if isinstance(ucx, Missing):
        return NotObservable(ucx.missing)
    lacking = [kind for kind in kinds if not _handles(ucx, kind)]
    if lacking:
        return Failed((_finding(ucx, lacking[0], hosts.local.host),))
    if functions.unread:
        return NotObservable(functions.unread)
    return Passed(f"UCX handles memory of type {joined(kinds)}")


def _handles(ucx: UcxTransports, kind: str) -> bool:
    return any(transport.name.startswith(f"{kind}_") for transport in ucx.transports) or any(
        memory.startswith(kind) for domain in ucx.domains for memory in domain.memory_types
    )


def _finding(ucx: UcxTransports, kind: str, host: str) -> Finding:
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject="UCX",
        summary=(
            f"UCX offers no {kind} transport on a host with such GPUs: consistent with transfers of GPU memory that "
            "fail or go through host memory"
        ),
        evidence=(
            Evidence(
                name="transports",
                value=joined(dict.fromkeys(transport.name for transport in ucx.transports)),
                source=f"ucx_info -d ({ucx.origin})",
                threshold=f"{kind}_copy, {kind}_ipc",
            ),
        ),
        action=(
            f"install UCX's {kind} module (libuct_{kind}.so; packages ucx-{kind}), or use the UCX that the engine "
            f"brings; then: ucx_info -d | grep {kind}"
        ),
        host=host,
    )


CHECK = Check(code=CODE, title="UCX can handle GPU memory", run=run, explained_by=("TRN001",))
