"""Routes, policy rules and ARP settings of one network namespace."""

from dataclasses import dataclass

from kvdiag.model.missing import Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A route of the main table; `network` as "198.51.100.0/26" or "2001:db8::/64", `gateway` "" where connected."""

    interface: str
    network: str
    gateway: str
    metric: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRule:
    """A policy rule that looks at the source address; `source` as "198.51.100.21" or "198.51.100.0/26"."""

    priority: int
    source: str
    table: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArpSetting:
    """The values in force on an interface: the greater of its own and of `all` (Documentation/networking/ip-sysctl)."""

    interface: str
    arp_ignore: int | Missing
    arp_announce: int | Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """`arp` sorted by interface."""

    routes: tuple[Route, ...] | Missing
    source_rules: tuple[SourceRule, ...] | Missing
    arp: tuple[ArpSetting, ...]

    def arp_of(self, interface: str) -> ArpSetting | None:
        """Return the ARP settings of an interface, or None where there are none."""
        return next((setting for setting in self.arp if setting.interface == interface), None)
