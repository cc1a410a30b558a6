"""Quality of service of the interfaces behind RoCE: what is trusted, which priorities are lossless, which marked."""

from dataclasses import dataclass

from kvdiag.model.missing import Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceQos:
    """An interface of an RDMA card. Priorities are 0 to 7; `trust` is "pcp" or "dscp".

    `pfc` are the priorities with priority flow control, `ecn_np` and `ecn_rp` those in which the card sends
    congestion notifications and reacts to them. `carrier_changes` counts ups and downs since the driver was loaded.
    """

    name: str
    pci_address: str
    trust: str | Missing
    pfc: tuple[int, ...] | Missing
    ecn_np: tuple[int, ...] | Missing
    ecn_rp: tuple[int, ...] | Missing
    carrier_changes: int | Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTrafficClass:
    """`traffic_class` is the class that the administrator forces on every connection of a device, None for none."""

    device: str
    traffic_class: int | Missing | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoceQos:
    """Every interface on a PCI function with an RDMA device, and every RDMA device, each sorted by name."""

    interfaces: tuple[InterfaceQos, ...]
    devices: tuple[DeviceTrafficClass, ...]

    def of(self, pci_address: str | Missing, *, whole_card: bool = False) -> tuple[InterfaceQos, ...]:
        """Return the interfaces of the function at that address, or of all functions of its card (a bond's ports)."""
        if isinstance(pci_address, Missing):
            return ()
        slot = pci_address.rpartition(".")[0]
        return tuple(
            item
            for item in self.interfaces
            if (item.pci_address.rpartition(".")[0] == slot if whole_card else item.pci_address == pci_address)
        )
