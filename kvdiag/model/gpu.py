"""GPUs as their vendors' management libraries show them."""

from dataclasses import dataclass

from kvdiag.model.missing import Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """`address` as sysfs writes it; sizes in bytes. `window_bytes` is what of the memory PCI devices can reach at once
    (NVIDIA: BAR1, AMD: visible VRAM), `window_used_bytes` how much of it is taken.

    `links` counts active NVLink or xGMI links; `fabric_state` and `cluster_uuid` name the NVLink domain of several
    nodes that the GPU is part of.
    """

    address: str
    name: str | Missing
    memory_bytes: int | Missing
    window_bytes: int | Missing
    window_used_bytes: int | Missing
    links: int | Missing
    fabric_state: str | Missing
    cluster_uuid: str | Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaGpus:
    """Sorted by address; `driver` is the version; `origin` the library, program or file that said so."""

    gpus: tuple[Gpu, ...]
    driver: str | Missing
    origin: str

    def at(self, address: str) -> Gpu | None:
        """Return the GPU at that address, or None where there is none."""
        return next((gpu for gpu in self.gpus if gpu.address == address), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdGpus:
    """Sorted by address; `driver` is the version of amdgpu; `origin` where sizes and names were read."""

    gpus: tuple[Gpu, ...]
    driver: str | Missing
    origin: str

    def at(self, address: str) -> Gpu | None:
        """Return the GPU at that address, or None where there is none."""
        return next((gpu for gpu in self.gpus if gpu.address == address), None)
