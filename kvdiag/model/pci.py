"""PCI functions as sysfs shows them."""

from dataclasses import dataclass

from kvdiag.model.missing import Missing

VENDOR_NVIDIA = 0x10DE
VENDOR_MELLANOX = 0x15B3
VENDOR_AMAZON = 0x1D0F
VENDOR_AMD = 0x1002


@dataclass(frozen=True, slots=True, kw_only=True)
class PciFunction:
    """`class_code` is the 24-bit class; its upper byte is the base class (0x02 network, 0x03 display)."""

    address: str
    vendor: int
    device: int
    class_code: int
    driver: str | Missing

    @property
    def base_class(self) -> int:
        return self.class_code >> 16

    @property
    def given_away(self) -> bool:
        """Whether a guest or a user-space driver owns it, so that this kernel's drivers don't."""
        return self.driver in ("vfio-pci", "pci-stub", "uio_pci_generic", "xen-pciback")


@dataclass(frozen=True, slots=True, kw_only=True)
class PciFunctions:
    """Every PCI function, sorted by address; `unread` says why one is not among them, "" where all are."""

    functions: tuple[PciFunction, ...]
    unread: str = ""
