"""The running kernel: release, loaded modules, memory, and the NVIDIA driver it holds."""

from dataclasses import dataclass

from kvdiag.model.missing import Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """`modules` as /proc/modules names them (built-in ones are not listed); `memory_bytes` is MemTotal.

    `huge_pages` are those set aside (HugePages_Total), of `huge_page_bytes` each. `nvidia_version` is the text of
    /proc/driver/nvidia/version, Missing where that driver is not loaded.
    """

    release: str | Missing
    modules: tuple[str, ...] | Missing
    memory_bytes: int | Missing
    nvidia_version: str | Missing
    huge_pages: int | Missing
    huge_page_bytes: int | Missing
