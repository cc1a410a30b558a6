"""The environments that decide how KV blocks move, and the device lists in them."""

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvdiag.model.missing import Missing
from kvdiag.model.rdma import Port
from kvdiag.model.serving import Environment, ServingProcesses
from kvdiag.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class NamedEnvironment:
    """`subject` is whose environment it is, `origin` where it was read."""

    subject: str
    origin: str
    variables: Mapping[str, str]


def environments(snapshot: Snapshot) -> tuple[NamedEnvironment, ...] | Missing:
    """Return the environments of the serving processes; where there is none, the one that kvdiag was started with.

    The environment of the shell is not that of the engine, so it is judged only before an engine runs.
    """
    serving = snapshot.part(ServingProcesses)
    if isinstance(serving, Missing):
        return serving
    found = []
    hidden = None
    for process in serving.processes:
        if isinstance(process.variables, Missing):
            hidden = process.variables
        else:
            variables = {variable.name: variable.value for variable in process.variables}
            found.append(NamedEnvironment(process.name, f"/proc/{process.pid}/environ", variables))
    if found:
        return tuple(found)
    if hidden is not None:
        return hidden
    own = snapshot.part(Environment)
    if isinstance(own, Missing):
        return own
    return (NamedEnvironment("environment", own.origin, {item.name: item.value for item in own.variables}),)


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
