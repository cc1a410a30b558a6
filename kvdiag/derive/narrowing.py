"""How the processes of a host are told which RDMA ports to use: each transport has its own variable or flag."""

from kvdiag.derive.engines import setups
from kvdiag.derive.fabric import ucx_net_devices
from kvdiag.derive.setting import group_of, set_variable
from kvdiag.derive.transports import device_lists, families
from kvdiag.model.engine import EngineSetup
from kvdiag.model.missing import Missing, present
from kvdiag.model.rdma import Port, RdmaDevices
from kvdiag.model.snapshot import Snapshot


def use_only(snapshot: Snapshot, ports: tuple[Port, ...]) -> str | None:
    """Return what to do so that every process uses these ports only; None where one of them has no list of devices."""
    devices = snapshot.part(RdmaDevices)
    if isinstance(devices, Missing):
        return None
    found = present(setups(snapshot)) or ()
    if not found:
        return set_variable("", "UCX_NET_DEVICES", ucx_net_devices(devices, ports))
    each = [way for engine in found if engine.options for way in _ways(engine, ports, devices)]
    if any(way is None for way in each):
        return None
    return " and ".join(dict.fromkeys(way for way in each if way)) or None


def _ways(engine: EngineSetup, ports: tuple[Port, ...], devices: RdmaDevices) -> list[str | None]:
    group = group_of(engine.process)
    names = ",".join(dict.fromkeys(port.device for port in ports))
    if families(engine) is None:
        return [set_variable(group, "UCX_NET_DEVICES", ucx_net_devices(devices, ports))]
    ways: list[str | None] = []
    for family in device_lists(engine):
        if family == "UCX_":
            ways.append(set_variable(group, "UCX_NET_DEVICES", ucx_net_devices(devices, ports)))
        elif family == "MORI_":
            ways.append(set_variable(group, "MORI_RDMA_DEVICES", names))
        elif engine.process.engine == "sglang":
            ways.append(f"start it with --disaggregation-ib-device {names}")
        elif engine.process.engine == "mooncake":
            ways.append(f"start it with --device_name {names}")
        else:
            ways.append(None)
    return ways
