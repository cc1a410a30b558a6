"""LIM002: a finite limit of locked memory holds the memory as often as it is registered."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.memlock import is_exempt
from kvdiag.derive.rdma import active_ports, joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.kernel import Kernel
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import RdmaDevices
from kvdiag.model.serving import ServingProcess, ServingProcesses

CODE = "LIM002"


def run(hosts: Hosts) -> Outcome:
    serving = hosts.local.part(ServingProcesses)
    devices = hosts.local.part(RdmaDevices)
    kernel = hosts.local.part(Kernel)
    if isinstance(serving, Missing):
        return NotObservable(serving.missing)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    cards = tuple(dict.fromkeys(port.device for port in active_ports(devices)))
    if len(cards) < 2:
        return NotApplicable(f"{len(cards)} RDMA device(s) with an ACTIVE port: nothing is registered twice")
    if not serving.processes:
        return NotApplicable("no serving process runs: name one with --pid")
    memory = kernel if isinstance(kernel, Missing) else kernel.memory_bytes
    if isinstance(memory, Missing):
        return NotObservable(memory.missing)
    hidden = [process.memlock for process in serving.processes if isinstance(process.memlock, Missing)]
    finite = [(process, process.memlock) for process in serving.processes if isinstance(process.memlock, int)]
    hidden += [unknown for process, _ in finite if isinstance(unknown := is_exempt(process), Missing)]
    limited = [item for item in finite if is_exempt(item[0]) is False]
    # Below the host's memory LIM001 has its finding.
    between = [(process, limit) for process, limit in limited if memory <= limit < memory * len(cards)]
    if between:
        return Failed(tuple(_finding(*item, memory, cards, hosts.local.host) for item in between))
    if hidden:
        return NotObservable(hidden[0].missing)
    if limited and len(limited) == len([item for item in limited if item[1] < memory]):
        return NotApplicable("the limit is below the host's memory: LIM001 judges it")
    return Passed(f"no limit between the host's memory and {len(cards)} times as much")


def _finding(process: ServingProcess, limit: int, memory: int, cards: tuple[str, ...], host: str) -> Finding:
    return Finding(
        code=CODE,
        severity=Severity.INFO,
        subject=process.name,
        summary=(
            f"the locked-memory limit counts a host buffer once for each of {len(cards)} cards: a pool beyond "
            f"{limit // len(cards) >> 30} GiB that is registered on all of them exceeds it"
        ),
        evidence=(
            Evidence(
                name="Max locked memory (soft)",
                value=f"{limit} bytes",
                source=f"/proc/{process.pid}/limits",
                threshold=f"unlimited, or {memory * len(cards)} bytes (MemTotal times {len(cards)})",
            ),
            Evidence(name="RDMA devices", value=joined(cards), source="/sys/class/infiniband"),
            Evidence(name="MemTotal", value=f"{memory} bytes", source="/proc/meminfo"),
        ),
        action="raise it to unlimited where the process is started, as `kvdiag explain LIM001` shows",
        host=host,
    )


CHECK = Check(code=CODE, title="the locked-memory limit holds for every card", run=run, explained_by=("LIM001",))
