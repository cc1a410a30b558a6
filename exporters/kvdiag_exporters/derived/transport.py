"""The transport in use on each node, proved by counters: RDMA, TCP, shared memory or NVLink, mixed, cannot tell."""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag_exporters.catalog import Buckets, Metric, Sample
from kvdiag_exporters.collectors import netdev, nic
from kvdiag_exporters.collectors.base import Setup
from kvdiag_exporters.derived.base import Derived
from kvdiag_exporters.derived.carrier import TRANSPORTS, Moved, judge, ranks_behind
from kvdiag_exporters.going_on import Gone

WINDOW_S = 60.0
"""Claims are made when a transfer ends, cards count while it runs: over a minute that evens out."""

SHORTEST_S = 5.0

TRANSPORT = Metric(
    name="kvdiag_transfer_transport",
    kind="gauge",
    labels=("node", "direction", "transport"),
    help="1 for what carried the node's KV bytes in the last minute: rdma, tcp, tcp_loopback, local, mixed, unknown.",
)
BYTES = Metric(
    name="kvdiag_transfer_window_bytes",
    kind="gauge",
    unit="bytes",
    labels=("node", "direction", "counted_by"),
    help="Bytes of the last minute by who counted them: claimed (engines), rdma, ip, loopback; other traffic included.",
)

METRICS = (TRANSPORT, BYTES)

# Where several sources tell the same transfers, the first counts: NIXL's own, then its text, then the engines'.
_CLAIMS = {
    "kvdiag_nixl_transmit_bytes_total": (0, "transmit"),
    "kvdiag_nixl_receive_bytes_total": (0, "receive"),
    "kvdiag_engine_transfer_moved_bytes_total": (1, ""),
    "kvdiag_engine_transfer_size_bytes": (2, ""),
}
_BY_KIND = {"write": "transmit", "read": "receive", "send": "transmit", "recv": "receive"}
_BY_ROLE = {"prefill": "transmit", "decode": "receive"}
_RDMA = {
    "kvdiag_rdma_port_transmit_bytes_total": "transmit",
    "kvdiag_rdma_port_receive_bytes_total": "receive",
}
_PACKETS = {
    "kvdiag_rdma_port_transmit_packets_total": "transmit",
    "kvdiag_rdma_port_receive_packets_total": "receive",
}
_NETDEV = {
    "kvdiag_netdev_transmit_bytes_total": ("bytes", "transmit"),
    "kvdiag_netdev_receive_bytes_total": ("bytes", "receive"),
    "kvdiag_netdev_transmit_packets_total": ("packets", "transmit"),
    "kvdiag_netdev_receive_packets_total": ("packets", "receive"),
}
_IP = {netdev.IP_SENT.name: "transmit", netdev.IP_RECEIVED.name: "receive"}

_WANTED = frozenset((*_CLAIMS, *_RDMA, *_PACKETS, *_NETDEV, *_IP, nic.UP.name))

Totals = Mapping[tuple[str, ...], float]


@dataclass(slots=True)
class _Reading:
    """Totals of one collection by (what, node, direction, …); `ports` whether the host has RDMA ports that are up."""

    time_s: float
    totals: dict[tuple[str, ...], float] = field(default_factory=lambda: defaultdict(float))
    ports: bool = False


class TransportDerivation:
    def __init__(self, host: str) -> None:
        self._host = host
        self._history: deque[_Reading] = deque()
        self._latest: dict[tuple[str, ...], float] = {}

    def go_on(self, before: "TransportDerivation", gone: Gone) -> None:
        """Begin with the window of before a reload, where nothing of it is gone."""
        if before._host == self._host and not gone.nodes:
            self._history, self._latest = before._history, before._latest

    def derive(self, samples: Sequence[Sample], monotonic_s: float) -> Derived:
        """Return the verdict of each node and direction in which engines claim to move bytes."""
        now = _read(samples, monotonic_s)
        if self._history:
            before = self._history[-1]
            silent = {key[0] for key in before.totals} - {key[0] for key in now.totals} - {"claimed"}
            if silent and now.time_s - before.time_s < WINDOW_S:
                return Derived()  # a collector that did not answer in time: nothing was restarted, nothing is known
            if silent or any(value < self._latest.get(key, value) for key, value in now.totals.items()):
                # Something was restarted: what it had moved is in no difference.
                self._history.clear()
                self._latest.clear()
        self._latest.update(now.totals)
        self._history.append(now)
        while len(self._history) > 2 and now.time_s - self._history[1].time_s >= WINDOW_S:
            self._history.popleft()
        before = self._history[0]
        found = Derived()
        if now.time_s - before.time_s < SHORTEST_S:
            return found
        # What was not there before has no difference either: a new engine begins with the next window.
        moved = {key: value - before.totals[key] for key, value in now.totals.items() if key in before.totals}
        for node, direction in sorted({(key[1], key[2]) for key in moved if key[0] == "claimed"}):
            self._judge(node, direction, moved, now.ports, found)
        return found

    def _judge(self, node: str, direction: str, moved: Totals, ports: bool, found: Derived) -> None:
        claimed = _claimed(node, direction, moved)
        where = node if ("ip", node, direction) in moved else self._host
        loopback = moved.get(("lo", where, direction))
        through = moved.get(("ip", where, direction))
        rdma = moved.get(("rdma", self._host, direction))
        if rdma is None and ports:
            # Soft-RoCE counts packets only, and they pass the IP stack as UDP.
            rdma = _by_packets(self._host, direction, moved)
            if rdma is not None and through is not None:
                through = max(0.0, through - rdma)
        if through is not None and loopback is not None:
            through = max(0.0, through - loopback)
        it = Moved(claimed=claimed, rdma=rdma, ip=through, loopback=loopback, rdma_present=ports)
        transport, why = judge(it)
        found.samples += [TRANSPORT.sample(float(one == transport), node, direction, one) for one in TRANSPORTS]
        for name, value in (("claimed", claimed), ("rdma", rdma), ("ip", through), ("loopback", loopback)):
            if value is not None:
                found.samples.append(BYTES.sample(value, node, direction, name))
        if transport in ("tcp", "mixed") and ports:
            summary = (
                f"KV bytes go over {'TCP' if transport == 'tcp' else 'RDMA and TCP'} though RDMA ports are up: {why}"
            )
            action = (
                "start the engine with UCX_LOG_LEVEL=info and see which transports it chose; kvdiag preflight says why"
            )
            found.findings.append(_finding("EXP005", node, direction, summary, action, claimed))
        times = ranks_behind(it)
        if transport == "rdma" and times is not None:
            summary = f"the cards carried {times} times what the engines claim: one rank may be reporting for {times}"
            action = "have every rank report (SGLang: --enable-metrics-for-all-schedulers; NIXL: prometheus_mp)"
            found.findings.append(_finding("EXP006", node, direction, summary, action, claimed))


def _read(samples: Sequence[Sample], time_s: float) -> _Reading:
    now = _Reading(time_s)
    for metric, labels, value in samples:
        name = metric.name
        if name not in _WANTED:
            continue
        amount = value.sum if isinstance(value, Buckets) else value
        if name in _CLAIMS:
            rank, direction = _CLAIMS[name]
            role = labels[2]
            if not direction:
                kind = labels[5].split("_")[0]
                direction = _BY_KIND.get(kind) or _BY_ROLE.get(role, "receive")
            now.totals["claimed", labels[0], direction, labels[1], str(rank)] += amount
        elif name in _RDMA:
            now.totals["rdma", labels[0], _RDMA[name]] += amount
        elif name in _PACKETS:
            now.totals["rdma_packets", labels[0], _PACKETS[name]] += amount
        elif name in _NETDEV:
            what, direction = _NETDEV[name]
            if labels[2] == "lo":
                if what == "bytes":
                    now.totals["lo", labels[0], direction] += amount
            else:
                now.totals[f"netdev_{what}", labels[0], direction] += amount
        elif name in _IP:
            now.totals["ip", labels[0], _IP[name]] += amount
        elif metric is nic.UP:
            now.ports = now.ports or amount > 0
    return now


def _claimed(node: str, direction: str, moved: Totals) -> float:
    """Return the sum over the engines of what the best source of each claims."""
    best: dict[str, tuple[str, float]] = {}
    for key, value in moved.items():
        if key[:3] == ("claimed", node, direction):
            engine, rank = key[3], key[4]
            if engine not in best or rank < best[engine][0]:
                best[engine] = (rank, value)
    return sum(value for _, value in best.values())


def _by_packets(host: str, direction: str, moved: Totals) -> float | None:
    """Return the RDMA share of the interfaces' bytes by packets; None where one of the counts is not there."""
    packets = moved.get(("rdma_packets", host, direction))
    through = moved.get(("netdev_bytes", host, direction))
    all_packets = moved.get(("netdev_packets", host, direction))
    if packets is None or through is None or all_packets is None:
        return None
    return through * min(1.0, packets / all_packets) if all_packets else 0.0


def _finding(code: str, node: str, direction: str, summary: str, action: str, claimed: float) -> Finding:
    return Finding(
        code=code,
        severity=Severity.WARNING,
        subject=f"{node} {direction}",
        summary=summary,
        evidence=(Evidence(name="claimed", value=f"{claimed:.4g} B", source=BYTES.name),),
        action=action,
        host=node,
    )


def create(setup: Setup) -> TransportDerivation:
    return TransportDerivation(setup.node)
