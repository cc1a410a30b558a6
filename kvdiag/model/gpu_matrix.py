"""How NVIDIA GPUs and RDMA devices are joined, as `nvidia-smi topo -m` draws it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLink:
    """`one` and `other` are GPUs ("GPU0") or RDMA devices ("mlx5_0"); `kind` is NV18, PIX, PXB, PHB, NODE, SYS, …"""

    one: str
    other: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMatrix:
    """Each pair once, in the order of the rows; `origin` names the program or file that said so."""

    links: tuple[GpuLink, ...]
    origin: str

    @property
    def between_gpus(self) -> tuple[GpuLink, ...]:
        return tuple(link for link in self.links if link.one.startswith("GPU") and link.other.startswith("GPU"))
