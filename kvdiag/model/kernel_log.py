"""What the kernel logged about RDMA, GPUs and PCI."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLog:
    """The newest lines that name an RDMA or GPU driver or a PCI error, oldest first, and where they were read.

    The kernel's buffer is a ring: a line that is not here may have been overwritten.
    """

    lines: tuple[str, ...]
    origin: str
