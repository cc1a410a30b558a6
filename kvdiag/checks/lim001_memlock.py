"""LIM001: the serving process may lock the memory that it registers."""

from collections import defaultdict

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.memlock import is_exempt
from kvdiag.derive.rdma import joined
from kvdiag.derive.setting import unit_of
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.kernel import Kernel
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import RdmaDevices
from kvdiag.model.serving import ServingProcess, ServingProcesses

CODE = "LIM001"
_NO_KV_CACHE_BYTES = 1 << 30
"""A pool of host KV blocks below 1 GiB is of no use, so a limit below it stops every engine (defaults: 64 KiB, 8 MiB,
64 MiB in containers)."""


def run(hosts: Hosts) -> Outcome:
    serving = hosts.local.part(ServingProcesses)
    if isinstance(serving, Missing):
        return NotObservable(serving.missing)
    if not serving.processes:
        return NotApplicable(
            "no serving process runs (the limit of a shell is not that of an engine): name one with --pid"
        )
    devices = hosts.local.part(RdmaDevices)
    if not isinstance(devices, Missing) and not devices.devices:
        return NotApplicable("no RDMA device: nothing is registered")
    kernel = hosts.local.part(Kernel)
    memory = kernel.memory_bytes if isinstance(kernel, Kernel) else kernel
    limited: dict[tuple[str, int], list[ServingProcess]] = defaultdict(list)
    hidden = []
    for process in serving.processes:
        if isinstance(process.memlock, Missing):
            hidden.append(process.memlock)
        elif process.memlock == "unlimited" or is_exempt(process) is True:
            continue
        elif isinstance(unknown := is_exempt(process), Missing):
            hidden.append(unknown)
        elif isinstance(memory, Missing) or process.memlock < memory:
            limited[process.engine, process.memlock].append(process)
    if limited:
        findings = (_finding(processes, hosts.local.host, memory) for processes in limited.values())
        return Failed(tuple(findings))
    if hidden:
        return NotObservable(hidden[0].missing)
    return Passed(joined(_shown(process) for process in serving.processes))


def _shown(process: ServingProcess) -> str:
    limit = "unlimited" if process.memlock == "unlimited" else f"{process.memlock} bytes"
    return f"{process.name}: {limit}{', CAP_IPC_LOCK' if is_exempt(process) is True else ''}"


def _finding(processes: list[ServingProcess], host: str, memory: int | Missing) -> Finding:
    first = processes[0]
    assert isinstance(first.memlock, int)
    pids = joined(str(process.pid) for process in processes)
    capabilities = "unknown" if isinstance(first.cap_eff, Missing) else f"{first.cap_eff:016x}"
    evidence: tuple[Evidence, ...] = (
        Evidence(
            name="Max locked memory (soft)",
            value=f"{first.memlock} bytes",
            source=f"/proc/{first.pid}/limits",
            threshold="unlimited",
        ),
        Evidence(
            name="CapEff", value=capabilities, source=f"/proc/{first.pid}/status", threshold="bit 14, CAP_IPC_LOCK"
        ),
    )
    if not isinstance(memory, Missing):
        evidence += (Evidence(name="MemTotal", value=f"{memory} bytes", source="/proc/meminfo"),)
    return Finding(
        code=CODE,
        severity=Severity.CRITICAL if first.memlock < _NO_KV_CACHE_BYTES else Severity.WARNING,
        subject=f"{first.engine} process {pids}",
        summary=f"{first.engine} ({pids}) may lock only {_size(first.memlock)}: memory registration fails beyond it",
        evidence=evidence,
        action=_action(first),
        host=host,
    )


def _size(value: int) -> str:
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if value >= 1 << shift:
            return f"{value / (1 << shift):.4g} {unit}"
    return f"{value} bytes"


def _action(process: ServingProcess) -> str:
    """Return the remedy for what started the process (its control group shows it): limits.conf reaches only logins."""
    group = "" if isinstance(process.cgroup, Missing) else process.cgroup
    if "kubepods" in group:
        runtime = "set LimitMEMLOCK=infinity in containerd.service and restart it"
        if process.uid != 0:
            return (
                f"{runtime}, then the pod; IPC_LOCK in securityContext.capabilities.add has no effect for "
                f"{'a user other than root' if isinstance(process.uid, Missing) else f'uid {process.uid}'}, only with "
                "runAsUser: 0"
            )
        return (
            f'give the container the capability: securityContext: {{capabilities: {{add: ["IPC_LOCK"]}}}}, or {runtime}'
        )
    if "docker" in group or "libpod" in group:
        return "start the container with --ulimit memlock=-1:-1 (or --cap-add IPC_LOCK)"
    if "slurm" in group:
        return "set LimitMEMLOCK=infinity in slurmd.service and PropagateResourceLimitsExcept=MEMLOCK in slurm.conf"
    if unit := unit_of(group):
        return f"systemctl edit {unit} (two lines: [Service], LimitMEMLOCK=infinity) && systemctl restart {unit}"
    return (
        f"prlimit --pid {process.pid} --memlock=unlimited:unlimited now, and `ulimit -l unlimited` where it is started"
    )


CHECK = Check(code=CODE, title="the serving process may lock its memory", run=run)
