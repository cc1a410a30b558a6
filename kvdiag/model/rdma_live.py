"""What changes of RDMA ports and devices from second to second."""

from dataclasses import dataclass

from kvdiag.model.missing import Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class PortReading:
    """State, rate and raw counters of one port, as of `Port` and `PortCounters`."""

    device: str
    port: int
    state: str | Missing
    phys_state: str | Missing
    rate_gbps: float | Missing
    counters: dict[str, int]
    hw_counters: dict[str, int]
    unreadable: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """The hw_counters that belong to a device and not to one of its ports (EFA's commands and errors)."""

    device: str
    counters: dict[str, int]
