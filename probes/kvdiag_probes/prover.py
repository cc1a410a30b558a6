"""Takes the kernel's counts before a probe's transfers, and holds those after against the payload."""

import time

from kvdiag.model.missing import Missing
from kvdiag.model.probe import PortErrors, TransportProof
from kvdiag.model.rdma import PortCounters
from kvdiag_probes import proof, tracing
from kvdiag_probes.control.client import AgentClient
from kvdiag_probes.datapath import DataPath, Operation
from kvdiag_probes.rdma_path import RdmaPath
from kvdiag_probes.symptoms import grown_errors
from kvdiag_probes.tcp_path import TcpPath


class Prover:
    """Takes the counts before, and compares them afterwards."""

    def __init__(self, client: AgentClient, path: DataPath, operation: Operation) -> None:
        self._client = client
        self._path = path
        self._operation = operation
        rails = [path, *path.rails] if isinstance(path, RdmaPath) else []
        self._rails = [(rail.endpoint, _counters(rail)) for rail in rails]
        self._control_before = sum(client.moved_bytes)
        self._since_s = time.perf_counter()

    @property
    def before(self) -> PortCounters | Missing:
        """The first rail's counters before the probe."""
        return self._rails[0][1] if self._rails else Missing("no RDMA port was used")

    def note_objects(self) -> None:
        self._during = [proof.read_objects(endpoint.choice.device) for endpoint, _ in self._rails]

    def errors(self) -> tuple[PortErrors, ...]:
        """Return which error counters of each rail's port grew up to `prove`."""
        found = []
        for (endpoint, before), after in zip(self._rails, self._after, strict=True):
            grown = grown_errors(before, after)
            missing = grown.missing if isinstance(grown, Missing) else None
            port = f"{endpoint.choice.device}/{endpoint.choice.port}"
            found.append(PortErrors(port=port, grown=None if isinstance(grown, Missing) else grown, missing=missing))
        return tuple(found)

    def prove(self, payload: int) -> TransportProof:
        """Compare; the counts are taken now."""
        self._after = [proof.read_counters(one.choice.device, one.choice.port) for one, _ in self._rails]
        for (endpoint, before), after in zip(self._rails, self._after, strict=True):
            self._trace(f"{endpoint.choice.device}/{endpoint.choice.port}", before, after)
        if isinstance(self._path, TcpPath):
            sent, received = self._path.moved_bytes
            tracing.growth("TCP bytes sent", self._since_s, sent)
            tracing.growth("TCP bytes received", self._since_s, received)
            return proof.judge_tcp(payload, sent if self._operation.pushes else received)
        control_bytes = sum(self._client.moved_bytes) - self._control_before
        return proof.joined(
            [
                proof.judge_rdma(
                    self._operation,
                    payload,
                    endpoint.path_mtu,
                    endpoint.address.qpn,
                    before,
                    after,
                    during,
                    control_bytes,
                )
                for (endpoint, before), after, during in zip(self._rails, self._after, self._during, strict=True)
            ]
        )

    def _trace(self, port: str, before: PortCounters | Missing, after: PortCounters | Missing) -> None:
        """Add the port's counters that grew, traffic among them, to the timeline."""
        if isinstance(before, Missing) or isinstance(after, Missing):
            return
        for old, new in ((before.counters, after.counters), (before.hw_counters, after.hw_counters)):
            for name, value in sorted(new.items()):
                grown = value - old.get(name, value)
                if grown > 0:
                    tracing.growth(f"{port} {name}", self._since_s, grown)


def _counters(rail: RdmaPath) -> PortCounters | Missing:
    return proof.read_counters(rail.endpoint.choice.device, rail.endpoint.choice.port)
