"""Which RDMA ports of a host are meant for transfers between nodes, and which are not."""

from kvdiag.derive.device_lists import net_devices
from kvdiag.derive.gpu_distance import nearest_gpu
from kvdiag.derive.rdma import SOFTWARE_DRIVERS, active_ports, device_of, is_roce, model
from kvdiag.model.missing import Missing, present
from kvdiag.model.pci_topology import PciTopology
from kvdiag.model.rdma import Port, RdmaDevice, RdmaDevices
from kvdiag.model.snapshot import Snapshot


def hardware_ports(devices: RdmaDevices) -> tuple[Port, ...]:
    """Return the ACTIVE ports of hardware, in order."""
    return tuple(port for port in active_ports(devices) if device_of(devices, port).driver not in SOFTWARE_DRIVERS)


def unfit(devices: RdmaDevices, port: Port) -> str | None:
    """Return why an ACTIVE port is no fabric port beside the others, or None where nothing speaks against it.

    A port below half the highest rate of another make is taken for a management or storage port; of one make it is a
    link fault, which FAB001 finds.
    """
    if has_no_gid(devices, port):
        return "its GID table is empty"
    rated = [other for other in hardware_ports(devices) if not isinstance(other.rate_gbps, Missing)]
    if isinstance(port.rate_gbps, Missing) or not rated:
        return None
    fastest = max(rated, key=lambda other: (present(other.rate_gbps) or 0.0, not has_no_gid(devices, other)))
    highest = present(fastest.rate_gbps) or 0.0
    if port.rate_gbps * 2 < highest and model(device_of(devices, port)) != model(device_of(devices, fastest)):
        return f"it runs at {port.rate_gbps:g} Gb/s beside ports of {highest:g} Gb/s"
    return None


def has_no_gid(devices: RdmaDevices, port: Port) -> bool:
    """Return whether a RoCE port's GID table was read and holds nothing."""
    return is_roce(device_of(devices, port), port) and port.gids == ()


def fabric_ports(snapshot: Snapshot) -> tuple[Port, ...]:
    """Return the ports to use for transfers: ACTIVE, nothing against them, of the link layer of the fastest; and where
    some share a PCIe switch with a GPU, only those.
    """
    devices = snapshot.part(RdmaDevices)
    if isinstance(devices, Missing):
        return ()
    fit = [port for port in hardware_ports(devices) if unfit(devices, port) is None]
    if not fit:
        return ()
    layers = [port.link_layer for port in fit]
    fastest = max(fit, key=lambda port: (present(port.rate_gbps) or 0.0, layers.count(port.link_layer)))
    fit = [port for port in fit if port.link_layer == fastest.link_layer]
    near = [port for port in fit if is_near_gpu(snapshot, device_of(devices, port))]
    return tuple(near or fit)


def is_near_gpu(snapshot: Snapshot, device: RdmaDevice) -> bool:
    """Return whether a device is known to share a PCIe switch with a GPU."""
    topology = snapshot.part(PciTopology)
    if isinstance(topology, Missing):
        return False
    nearest = nearest_gpu(topology, device)
    return nearest is not None and nearest[1].is_switched


def ucx_net_devices(devices: RdmaDevices, ports: tuple[Port, ...]) -> str:
    """Return the value of UCX_NET_DEVICES for these ports.

    Without mlx5's own transports UCX may have no active messages with failure handling on RDMA (two public reports);
    `lo` leaves it TCP for an endpoint to itself.
    """
    listed = net_devices(ports)
    return listed if all(device_of(devices, port).driver == "mlx5_core" for port in ports) else f"{listed},lo"
