"""The user-space side of RDMA: provider libraries, the devices libibverbs lists, and the device nodes."""

import re
from dataclasses import dataclass, field

from kvdiag.model.missing import Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbsProviders:
    """`drivers` from *.driver files, `libraries` the provider files (libNAME-rdmavN.so) beside libibverbs.

    `root` is where they were looked for: "/", or the root of the serving process ("/proc/PID/root"). `libibverbs` is
    the file that libibverbs.so.1 leads to ("libibverbs.so.1.14.50.0"): its last two numbers are rdma-core's version.
    """

    root: str
    drivers: tuple[str, ...] | Missing
    libraries: tuple[str, ...] | Missing
    libibverbs: str | Missing

    @property
    def rdma_core(self) -> int | Missing:
        """Return the release of rdma-core (50 for 50.0), or Missing with the reason."""
        if isinstance(self.libibverbs, Missing):
            return self.libibverbs
        match = re.fullmatch(r"libibverbs\.so\.1\.\d{1,4}\.(\d{1,4})\.\d{1,4}", self.libibverbs)
        return (
            int(match[1]) if match else Missing(f"libibverbs.so.1 leads to {self.libibverbs}, which names no release")
        )

    def has(self, provider: str) -> bool | Missing:
        """Return whether both the driver file and the library of a provider are there."""
        if isinstance(self.drivers, Missing):
            return self.drivers
        if isinstance(self.libraries, Missing):
            return self.libraries
        return provider in self.drivers and any(name.startswith(f"lib{provider}-rdmav") for name in self.libraries)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbsPort:
    """`active_mtu` in bytes, Missing where the device could not be opened."""

    number: int
    active_mtu: int | Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbsDevice:
    """`limits` by the names of struct ibv_device_attr (max_qp, max_srq, vendor_part_id, ...), `texts` what is no number
    (atomic_cap: ATOMIC_NONE, ...); plain `ibv_devinfo` shows few of them, a device that cannot be opened none.
    """

    name: str
    ports: tuple[VerbsPort, ...]
    limits: dict[str, int] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbsDevices:
    """What libibverbs lists for the user that kvdiag runs as; `origin` names the program or file that said so.

    `warnings` are the lines in which libibverbs says why it leaves out a provider or a device.
    """

    devices: tuple[VerbsDevice, ...]
    origin: str
    warnings: tuple[str, ...] = ()

    def limit(self, device: str, name: str) -> int | Missing:
        """Return a limit of a device by its name in struct ibv_device_attr, or Missing with the reason."""
        for listed in self.devices:
            if listed.name == device and name in listed.limits:
                return listed.limits[name]
        return Missing(f"{self.origin} shows no {name} of {device}")

    def active_mtu(self, device: str, port: int) -> int | Missing:
        """Return the active MTU (bytes) of a port, or Missing with the reason."""
        for listed in self.devices:
            if listed.name == device:
                for known in listed.ports:
                    if known.number == port:
                        return known.active_mtu
        return Missing(f"{self.origin} shows no port {device}/{port}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A node of /dev/infiniband; `mode` the permission bits. `open_error` is "" where kvdiag could open it."""

    name: str
    mode: int | Missing
    uid: int | Missing
    gid: int | Missing
    open_error: str | Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNodes:
    """Every node of /dev/infiniband, sorted by name; empty where the folder does not exist."""

    nodes: tuple[DeviceNode, ...]

    def named(self, name: str | Missing) -> DeviceNode | None:
        """Return the node of that name, or None where there is none."""
        return next((node for node in self.nodes if node.name == name), None)
