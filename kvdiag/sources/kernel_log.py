"""The kernel log, as `dmesg` prints it, without the lines that concern neither RDMA, GPUs nor PCI."""

import re

from kvdiag.model.kernel_log import KernelLog
from kvdiag.model.missing import Missing
from kvdiag.sources._command import output
from kvdiag.sources.base import Context

MOST_LINES = 2000
"""Far more than a driver writes before the first failure; a flood of completion errors is cut to its newest part."""

_ABOUT = re.compile(
    r"mlx[45]|infiniband|\bib_|\brdma|\befa|bnxt|irdma|\bice\b|ionic|mana|\brxe|\bsiw|erdma|hns_|nvidia|NVRM|nv_peer"
    r"|amdgpu|amdkfd|peer_mem|peermem|\bAER\b|pcieport|DMAR|AMD-Vi|IOMMU|iommu",
)

_SHOWN = re.compile(
    rf"^(?:<\d+>)?\[|^[A-Z][a-z]{{2}} +\d|^\d{{4}}-\d\d|\bkernel: |Linux version|{_ABOUT.pattern}", re.MULTILINE
)
"""A line with its time, as dmesg, journalctl and syslog put it, the first line of every log, or one of those kept."""


class KernelLogSource:
    """Runs `dmesg` when live; a copied tree keeps its output in `commands/dmesg.txt`."""

    part = KernelLog

    def read(self, context: Context) -> KernelLog | Missing:
        said = output(context, "dmesg", ("dmesg",), _SHOWN)
        if isinstance(said, Missing):
            return said
        if not said.text.strip():
            return Missing("dmesg prints nothing: the kernel's log was cleared")
        lines = [line.strip() for line in said.text.splitlines() if _ABOUT.search(line)]
        return KernelLog(lines=tuple(lines[-MOST_LINES:]), origin="dmesg" if context.live else said.origin)


SOURCE = KernelLogSource()
