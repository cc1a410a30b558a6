"""The counters of network cards that only ethtool shows."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NicCounters:
    """`counters` by the driver's own names since it was loaded; `unreadable` says why there are none, or ""."""

    name: str
    pci_address: str
    counters: dict[str, int]
    unreadable: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AllNicCounters:
    """Every interface on a PCI function with an RDMA device; only counters of flow control, loss and link health."""

    interfaces: tuple[NicCounters, ...]
