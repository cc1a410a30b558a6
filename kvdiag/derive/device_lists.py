"""Lists of RDMA devices as transports take them: UCX_NET_DEVICES, NCCL_IB_HCA, --disaggregation-ib-device."""

import fnmatch
from collections.abc import Iterable

from kvdiag.model.rdma import Port


def device_list(value: str) -> tuple[str, ...]:
    """Split UCX_NET_DEVICES, NCCL_IB_HCA and the like; the prefixes of NCCL (`=`, `^`) are dropped."""
    return tuple(part.strip() for part in value.strip().lstrip("^=").split(",") if part.strip())


def selects(value: str | None, port: Port) -> bool:
    """Return whether a device list lets a port be used; an unset, empty or `all` list lets every port."""
    if value is None or not value.strip() or value.strip() == "all":
        return True
    names = (port.device, f"{port.device}:{port.number}")
    matched = any(fnmatch.fnmatchcase(name, part) for part in device_list(value) for name in names)
    return matched != value.strip().startswith("^")


def net_devices(ports: Iterable[Port]) -> str:
    """Return the value of UCX_NET_DEVICES that lets exactly these ports be used."""
    return ",".join(f"{port.device}:{port.number}" for port in ports)
