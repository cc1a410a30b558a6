"""Network interfaces as sysfs and procfs show them."""

from dataclasses import dataclass

from kvdiag.model.missing import Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class NetInterface:
    """`mtu` in bytes; `addresses` as text without prefix length; `bond_slaves` empty where it is no bond."""

    name: str
    mtu: int | Missing
    operstate: str | Missing
    bond_slaves: tuple[str, ...]
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetInterfaces:
    """Every interface of the network namespace, sorted by name."""

    devices: tuple[NetInterface, ...]

    def named(self, name: str | Missing) -> NetInterface | None:
        """Return the interface of that name, or None where there is none."""
        return next((device for device in self.devices if device.name == name), None)
