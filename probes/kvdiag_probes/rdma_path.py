"""The data path over verbs: this end's queue pairs, and the peer's address and key."""

from collections.abc import Callable, Sequence

from kvdiag.model.missing import Missing
from kvdiag.model.rdma import RdmaDevices
from kvdiag.sources.base import Context
from kvdiag.sources.rdma_sysfs import RdmaSysfs
from kvdiag_probes.control.messages import QueuePairAddress
from kvdiag_probes.datapath import Plan
from kvdiag_probes.posting import ChainedPass, Lane
from kvdiag_probes.verbs import Endpoint


class RdmaPath:
    """Connected queue pairs; `remote` may be changed before `prepare` to provoke a refusal.

    `rails` are further paths, over other devices, that carry the same messages between buffers of their own.
    """

    def __init__(
        self, endpoint: Endpoint, remote: QueuePairAddress, peer: str, rails: Sequence["RdmaPath"] = ()
    ) -> None:
        self.endpoint = endpoint
        self.remote = remote
        self.rails = rails
        self._peer = peer
        self.spoil_lane: Callable[[Lane], Lane] = lambda lane: lane

    @property
    def buffer(self) -> memoryview:
        return self.endpoint.buffer

    def push(self, start: int, stop: int) -> None:
        self.endpoint.region.push(start, stop)

    def pull(self, start: int, stop: int) -> None:
        self.endpoint.region.pull(start, stop)

    def lanes(self) -> list[Lane]:
        """Return a lane for every queue pair; `spoil_lane` may change each, to provoke a failure."""
        return [self.spoil_lane(lane) for lane in self.endpoint.lanes(self.remote)]

    def prepare(self, plan: Plan) -> ChainedPass:
        return ChainedPass([path.lanes() for path in (self, *self.rails)], plan, self._peer)

    def close(self) -> None:
        for path in (self, *self.rails):
            path.endpoint.close()


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
