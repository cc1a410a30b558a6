"""How PCI functions are attached: path, link, settings of configuration space, IOMMU group, memory windows."""

from dataclasses import dataclass

from kvdiag.model.missing import Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class PciLink:
    """A bridge, network, display or accelerator function.

    `path` holds the addresses from the root port down to the function itself. Speeds in 10^9 transfers/s and widths in
    lanes, as sysfs tells them for the link above the function. `acs` names the access-control bits that are set
    ("SrcValid", "ReqRedir", ...), empty where the function has none. `window_bytes` is the largest memory window.
    `iommu_type` is "identity" where addresses pass untranslated, else "DMA", "DMA-FQ" or "blocked".
    """

    address: str
    class_code: int
    root: str
    path: tuple[str, ...]
    speed_gtps: float | Missing
    width: int | Missing
    max_speed_gtps: float | Missing
    max_width: int | Missing
    acs: tuple[str, ...] | Missing
    relaxed_ordering: bool | Missing
    atomic_completer_bits: tuple[int, ...] | Missing
    iommu_group: str | Missing
    iommu_type: str | Missing
    window_bytes: int | Missing

    @property
    def is_bridge(self) -> bool:
        return self.class_code >> 16 == 0x06


@dataclass(frozen=True, slots=True, kw_only=True)
class PciLinks:
    """Sorted by address; `settings_origin` says where the settings of configuration space were read."""

    functions: tuple[PciLink, ...]
    settings_origin: str

    def at(self, address: str | Missing) -> PciLink | None:
        """Return the function at that address, or None where there is none."""
        return next((function for function in self.functions if function.address == address), None)
