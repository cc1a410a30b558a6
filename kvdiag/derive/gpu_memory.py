"""The ways by which an RDMA card reaches the memory of NVIDIA GPUs: peermem, or dma-buf."""

import re

from kvdiag.derive.setting import set_variable, unset_variable
from kvdiag.model.kernel import Kernel
from kvdiag.model.missing import Missing

PEERMEM = ("nvidia_peermem", "nv_peer_mem")
_DMABUF_KERNEL = (5, 12)
"""ib_umem_dmabuf_get came with Linux 5.12; only the open NVIDIA modules export GPU memory as a dma-buf."""


def peermem(kernel: Kernel) -> str | Missing | None:
    """Return the loaded module that serves peer memory, None where none is, Missing where modules are not listed."""
    if isinstance(kernel.modules, Missing):
        return kernel.modules
    return next((name for name in PEERMEM if name in kernel.modules), None)


def has_open_modules(kernel: Kernel) -> bool | Missing:
    """Return whether the NVIDIA kernel modules are the open ones, as their version text says."""
    version = kernel.nvidia_version
    return version if isinstance(version, Missing) else "Open Kernel Module" in version


def has_dmabuf(kernel: Kernel) -> bool | Missing:
    """Return whether GPU memory can be registered as a dma-buf: open modules on Linux 5.12 or newer."""
    is_open = has_open_modules(kernel)
    if isinstance(is_open, Missing) or not is_open:
        return is_open
    if isinstance(kernel.release, Missing):
        return kernel.release
    match = re.match(r"(\d{1,4})\.(\d{1,4})", kernel.release)
    if match is None:
        return Missing(f"kernel release: {kernel.release}")
    return (int(match[1]), int(match[2])) >= _DMABUF_KERNEL


def without_expandable_segments(group: str, name: str, value: str) -> str:
    """Return how a process of this control group starts with PyTorch's allocator options less expandable_segments."""
    rest = ",".join(
        part.strip() for part in value.split(",") if part.strip() and "expandable_segments" not in part.lower()
    )
    return set_variable(group, name, rest) if rest else unset_variable(group, name)
