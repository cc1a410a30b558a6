"""GDR003: peermem fits the ib_core that is loaded."""

import re

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.gpu_memory import has_dmabuf, peermem
from kvdiag.derive.kernel_lines import evidence, matching
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.kernel import Kernel
from kvdiag.model.missing import Missing, present

CODE = "GDR003"
_LINE = r"\b(nvidia_peermem|nv_peer_mem): (?:disagrees about version of|Unknown) symbol (\w+)"


def run(hosts: Hosts) -> Outcome:
    kernel = hosts.local.part(Kernel)
    if isinstance(kernel, Missing):
        return NotObservable(kernel.missing)
    if isinstance(kernel.nvidia_version, Missing):
        return NotApplicable("the NVIDIA driver is not loaded")
    loaded = peermem(kernel)
    if isinstance(loaded, str):
        return Passed(f"{loaded} is loaded, so its symbols were found")
    lines = matching(hosts.local, _LINE)
    if isinstance(lines, Missing):
        return NotObservable(lines.missing)
    if not lines:
        return Passed("the kernel log has no line about a symbol that peermem lacks")
    module, symbol = lines[-1].match.groups()
    dmabuf = has_dmabuf(kernel)
    finding = Finding(
        code=CODE,
        severity=Severity.WARNING if dmabuf is True else Severity.CRITICAL,
        subject=module,
        summary=f"{module} was built against another ib_core than the one loaded and cannot be inserted",
        evidence=(
            *evidence(hosts.local, lines),
            Evidence(name="symbol", value=symbol, source="kernel log", threshold="of the version that ib_core exports"),
            Evidence(name="peermem module", value="not loaded", source="/proc/modules", threshold="nvidia_peermem"),
            Evidence(
                name="dma-buf",
                value="usable" if dmabuf is True else "not usable",
                source="/proc/driver/nvidia/version, /proc/sys/kernel/osrelease",
            ),
        ),
        action=(
            f"dma-buf is usable here: take {module} out of /etc/modules-load.d (and out of the GPU operator)"
            if dmabuf is True
            else (
                "install the network driver (DOCA or MLNX_OFED) first, then rebuild the GPU driver against it "
                f"and load it: {_rebuild(kernel)} && modprobe {module}"
            )
        ),
        host=hosts.local.host,
    )
    return Failed((finding,))


def _rebuild(kernel: Kernel) -> str:
    """Return the commands; dkms autoinstall leaves alone what is installed, whatever it was built against."""
    release = present(kernel.release) or "$(uname -r)"
    found = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", present(kernel.nvidia_version) or "")
    name = f"nvidia/{found[1]}" if found else "nvidia/VERSION"
    return f"dkms build --force {name} -k {release} && dkms install --force {name} -k {release}"


CHECK = Check(code=CODE, title="peermem fits the loaded ib_core", run=run, explains=("GDR001", "GDR002"))
