"""Where network cards and GPUs sit in the PCI tree."""

from dataclasses import dataclass

from kvdiag.model.missing import Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class PciPlace:
    """`path` is the way to the function from its root bus, both included: ("pci0000:3a", "0000:3a:01.0", …)."""

    address: str
    vendor: int
    class_code: int
    path: tuple[str, ...]
    numa_node: int | Missing

    @property
    def is_gpu(self) -> bool:
        """Whether it is a display controller (0x03) or processing accelerator (0x12) of NVIDIA or AMD."""
        return self.vendor in (0x10DE, 0x1002) and self.class_code >> 16 in (0x03, 0x12)


@dataclass(frozen=True, slots=True, kw_only=True)
class PciTopology:
    """Network controllers, GPUs and accelerators, sorted by address.

    `unreadable` says why the place of some function is not among them, or is "".
    """

    places: tuple[PciPlace, ...]
    unreadable: str = ""

    def at(self, address: str | Missing) -> PciPlace | None:
        """Return the place of the function at that address, or None where it is not known."""
        return next((place for place in self.places if place.address == address), None)

    @property
    def gpus(self) -> tuple[PciPlace, ...]:
        """The GPUs in the order of their addresses, which is how NVIDIA and AMD number them by default."""
        return tuple(place for place in self.places if place.is_gpu)
