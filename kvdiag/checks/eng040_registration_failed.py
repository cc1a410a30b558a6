"""ENG040: no engine failed to register memory."""

from collections import defaultdict

from kvdiag.checks.base import Check, Failed, Hosts, Outcome
from kvdiag.checks.logged import Logged, logged, none_logged, times
from kvdiag.derive.environments import environments
from kvdiag.derive.gpu_memory import without_expandable_segments
from kvdiag.derive.rdma import joined
from kvdiag.model.finding import Finding, Severity
from kvdiag.model.kernel import Kernel
from kvdiag.model.missing import Missing, present

CODE = "ENG040"
_MEANINGS = {
    "14": (
        Severity.CRITICAL,
        "Bad address",
        "the card cannot pin this memory: GPU memory without a path for it (GDR001), or in expandable segments "
        "(GDR002)",
        "",
    ),
    "12": (
        Severity.CRITICAL,
        "Cannot allocate memory",
        "the memory lock limit of the process or a limit of the card is used up (LIM001)",
        "grep 'Max locked memory' /proc/PID/limits of the engine: it must be unlimited; EFA: use huge pages",
    ),
    "22": (
        Severity.WARNING,
        "Invalid argument",
        "consistent with a driver that does not support this kind of memory or access (relaxed ordering, atomics)",
        "compare kernel, GPU driver and rdma-core with a host where it works; dmesg | tail says what the driver "
        "refused",
    ),
    "95": (
        Severity.WARNING,
        "Operation not supported",
        "dma-buf registration is not supported here",
        "load nvidia_peermem, or use the open GPU kernel modules with Linux 5.12 or later",
    ),
}
_OTHER = (
    Severity.WARNING,
    "no error number",
    "why is not said in this line",
    "read the lines above it, and dmesg at that time",
)
_SAME = {"93": "95"}


def run(hosts: Hosts) -> Outcome:
    symbols = logged(hosts.local, "peermem_symbol")
    found = logged(hosts.local, "registration_failed")
    if not found and not symbols:
        return none_logged(hosts, "no failed memory registration")
    by_error: dict[str, list[Logged]] = defaultdict(list)
    for item in found:
        errno = item.field("errno")
        known = _SAME.get(errno, errno)
        by_error[known if known in _MEANINGS else ""].append(item)
    # A library above repeats the failure without its number.
    vague = by_error.pop("", []) if len(by_error) > 1 else []
    findings = [_finding(hosts, errno, tuple(items), tuple(vague)) for errno, items in sorted(by_error.items())]
    if symbols:
        findings.append(_peermem(hosts, symbols))
    return Failed(tuple(findings))


def _finding(hosts: Hosts, errno: str, items: tuple[Logged, ...], vague: tuple[Logged, ...]) -> Finding:
    severity, text, meaning, action = _MEANINGS.get(errno, _OTHER)
    memory = joined(sorted({item.field("memory") for item in items if item.field("memory")}))
    devices = tuple(sorted({item.field("device") for item in items if item.field("device")}))
    first = min(items, key=lambda item: item.event.offset)
    return Finding(
        code=CODE,
        severity=severity,
        subject="engine log",
        summary=(
            f"registering {memory + ' ' if memory else ''}memory failed {times(items)} time(s) "
            f"({text}{f' [{errno}]' if errno else ''}): {meaning}"
        ),
        evidence=(
            first.evidence(f"first, by {first.field('reporter')}"),
            *(item.evidence(f"then, by {item.field('reporter')}") for item in vague[:1]),
        ),
        action=_address_action(hosts, first) if errno == "14" else action,
        host=hosts.local.host,
        devices=devices,
    )


def _address_action(hosts: Hosts, first: Logged) -> str:
    """Return what this host lacks of the two established causes; both where neither can be seen."""
    found = environments(hosts.local)
    segments = [
        (name, environment)
        for environment in (() if isinstance(found, Missing) else found)
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
        if "expandable_segments:true" in environment.variables.get(name, "").replace(" ", "").lower()
    ]
    if segments:
        name, environment = segments[0]
        return (
            f"{without_expandable_segments(environment.group, name, environment.variables[name])} (expandable segments)"
        )
    if first.field("reporter") == "libfabric":
        return (
            "modprobe efa_nv_peermem, or use a libfabric that registers GPU memory through dma-buf "
            "(FI_HMEM_CUDA_USE_DMABUF=1; kvdiag explain EFA002); then start the engine again"
        )
    kernel = present(hosts.local.part(Kernel))
    modules = present(kernel.modules) if kernel else None
    if modules is not None and not {"nvidia_peermem", "nv_peer_mem"} & set(modules):
        return "modprobe nvidia_peermem (or use dma-buf: kvdiag explain GDR001), then start the engine again"
    return "check that the engine's environment has no expandable_segments:True, and read kvdiag explain GDR001"


def _peermem(hosts: Hosts, symbols: tuple[Logged, ...]) -> Finding:
    return Finding(
        code=CODE,
        severity=Severity.CRITICAL,
        subject="nvidia_peermem",
        summary=(
            f"nvidia_peermem does not fit the loaded ib_core ({symbols[0].field('symbol')}): GPU memory cannot be "
            "registered through it"
        ),
        evidence=(symbols[0].evidence("first"),),
        action="rebuild the GPU driver against the loaded OFED (network driver first), or switch to dma-buf",
        host=hosts.local.host,
    )


CHECK = Check(
    code=CODE,
    title="no memory registration failed",
    run=run,
    explained_by=(
        *(f"GDR{number:03d}" for number in (1, 2, 3, 4, 5, 6, 10)),
        *("EFA001", "EFA002", "LIM001", "LIM002", "REG005"),
    ),
)
