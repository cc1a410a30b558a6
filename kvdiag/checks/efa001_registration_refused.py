"""EFA001: no EFA card has refused to register memory."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.kernel_lines import Line, evidence, matching
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.kernel import Kernel
from kvdiag.model.missing import Missing, present
from kvdiag.model.rdma import RdmaDevices
from kvdiag.model.snapshot import Snapshot

CODE = "EFA001"
_LINE = r"(?:infiniband )?([\w-]+): Failed to process command REG_MR \(opcode 7\) comp_status \d+ err (-?\d+)"
_NO_MEMORY = "-12"


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    names = tuple(device.name for device in devices.devices if device.driver == "efa")
    if not names:
        return NotApplicable("no EFA card")
    lines = matching(hosts.local, _LINE)
    if isinstance(lines, Missing):
        return NotObservable(lines.missing)
    if not lines:
        return Passed("the kernel log has no registration that an EFA card refused")
    return Failed((_finding(hosts.local, lines, names),))


def _finding(local: Snapshot, lines: tuple[Line, ...], names: tuple[str, ...]) -> Finding:
    kernel = present(local.part(Kernel))
    memory = None if kernel is None else present(kernel.memory_bytes)
    pages = None if kernel is None else present(kernel.huge_pages)
    page_bytes = None if kernel is None else present(kernel.huge_page_bytes)
    refused = tuple(dict.fromkeys(line.match[1] for line in lines))
    no_memory = any(line.match[2] == _NO_MEMORY for line in lines)
    shown = [
        Evidence(
            name="huge pages set aside",
            value="unknown" if pages is None else f"{pages} of {(page_bytes or 0) >> 20} MiB",
            source="/proc/meminfo",
            threshold="enough for the pool" if no_memory else None,
        )
    ]
    if memory is not None:
        # A card's table counts pages: a report has it full at a quarter of memory in pages of 4 KiB.
        shown.append(Evidence(name="a quarter of memory", value=f"{memory // 4 >> 30} GiB", source="/proc/meminfo"))
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=", ".join(refused),
        summary=(
            f"{', '.join(refused)} refused {len(lines)} registration(s)"
            + (": out of room, consistent with more 4 KiB pages than its table holds" if no_memory else "")
        ),
        evidence=(*evidence(local, lines), *shown),
        action=(
            "allocate the host pool in huge pages (sysctl vm.nr_hugepages=N of 2 MiB each): a registration then takes "
            "512 times fewer entries; register it on fewer cards"
        ),
        host=local.host,
        devices=tuple(name for name in refused if name in names),
    )


CHECK = Check(code=CODE, title="EFA cards register what they are asked to", run=run, explained_by=("LIM001",))
