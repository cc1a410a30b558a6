"""The data path over verbs: this end's queue pair, and the peer's address and key."""

from kvdiag.model.missing import Missing
from kvdiag.model.rdma import RdmaDevices
from kvdiag.sources.base import Context
from kvdiag.sources.rdma_sysfs import RdmaSysfs
from kvdiag_probes.control.messages import QueuePairAddress
from kvdiag_probes.datapath import Plan
from kvdiag_probes.verbs import ChainedPass, Endpoint


class RdmaPath:
    """A connected queue pair; `remote` may be changed before `prepare` to provoke a refusal."""

    def __init__(self, endpoint: Endpoint, remote: QueuePairAddress, peer: str) -> None:
        self.endpoint = endpoint
        self.remote = remote
        self._peer = peer

    @property
    def buffer(self) -> memoryview:
        return self.endpoint.buffer

    def prepare(self, plan: Plan) -> ChainedPass:
        return self.endpoint.prepare(plan, self.remote, self._peer)

    def close(self) -> None:
        self.endpoint.close()


def read_devices() -> RdmaDevices:
    """Return this host's RDMA devices; none where sysfs cannot be seen."""
    devices = RdmaSysfs().read(Context())
    return RdmaDevices(devices=()) if isinstance(devices, Missing) else devices


def inactive_port(device: str, port: int) -> str:
    """Return `device/port is STATE` where the port is not ACTIVE, else an empty text."""
    for found in read_devices().ports:
        if (found.device, found.number) == (device, port):
            return "" if found.state == "ACTIVE" else f"{found.name} is {found.state}"
    return f"{device}/{port} is gone"
