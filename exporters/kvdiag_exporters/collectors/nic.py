"""RDMA ports: state, speed, traffic, utilisation, and every counter of every driver, raw and under one meaning."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvdiag.derive.pma import GREATEST
from kvdiag.model.missing import Missing
from kvdiag.model.rdma_live import PortReading
from kvdiag.sources._rdma_ports import PortReader
from kvdiag_exporters.catalog import Metric, Recorded, Sample
from kvdiag_exporters.collectors.base import Setup
from kvdiag_exporters.going_on import Gone
from kvdiag_exporters.nic_map import COUNTED, LABELS, OPERATION_BYTES, OPERATIONS, RECEIVE, TRANSMIT, Counted, kind_of

SHORTEST_S = 0.5
"""No utilisation is told over a shorter time: drivers refresh their counters every 10 ms or so."""

UP = Metric(
    name="kvdiag_rdma_port_up", kind="gauge", labels=LABELS, help="1 where the RDMA port's state is ACTIVE, else 0."
)
SPEED = Metric(
    name="kvdiag_rdma_port_speed_bytes_per_second",
    kind="gauge",
    labels=LABELS,
    help="Negotiated rate of the RDMA port.",
    recorded=(Recorded(name="nic.link_gbps", unit="Gbit/s", scale=8e-9),),
)
UTILISATION = Metric(
    name="kvdiag_rdma_port_utilisation_ratio",
    kind="gauge",
    unit="ratio",
    labels=(*LABELS, "direction"),
    help="Share of the negotiated rate used since the collection before, by direction: transmit, receive.",
)
LINK_CHANGES = Metric(
    name="kvdiag_rdma_port_link_changes_total",
    kind="counter",
    labels=(*LABELS, "to"),
    help="Times the port was seen to become ACTIVE (up) or to cease to be (down) since the exporter started.",
)
RAW = Metric(
    name="kvdiag_rdma_port_raw_total",
    kind="counter",
    labels=(*LABELS, "group", "counter"),
    help="Every counter by its own name and in its own unit; group pma has *_data in words of 4 bytes.",
)
LEVEL = Metric(
    name="kvdiag_rdma_port_level",
    kind="gauge",
    labels=(*LABELS, "counter"),
    help="Values among a driver's counters that go up and down, by its own names.",
)
DEVICE_RAW = Metric(
    name="kvdiag_rdma_device_raw_total",
    kind="counter",
    labels=("node", "device", "counter"),
    help="Counters of a device that belong to none of its ports, by the driver's own names.",
)
REGISTRATION_ERRORS = Metric(
    name="kvdiag_rdma_registration_errors_total",
    kind="counter",
    labels=("node", "device"),
    help="Registrations that the device refused, where its driver counts them (EFA).",
)
UNREADABLE = Metric(
    name="kvdiag_rdma_port_unreadable",
    kind="gauge",
    labels=LABELS,
    help="Counters that are there and give no number: EINVAL, no permission, N/A.",
)
SATURATED = Metric(
    name="kvdiag_rdma_port_saturated",
    kind="gauge",
    labels=(*LABELS, "counter"),
    help="1 for a counter at its greatest value: it counts no more, and its rate reads zero whatever happens.",
)

METRICS = (
    UP,
    SPEED,
    UTILISATION,
    LINK_CHANGES,
    RAW,
    LEVEL,
    DEVICE_RAW,
    REGISTRATION_ERRORS,
    UNREADABLE,
    SATURATED,
    OPERATION_BYTES,
    *(one.metric for one in COUNTED),
)


@dataclass(slots=True)
class _Before:
    """What is remembered of a port: when its bytes were read and what they were, its state and how often it changed."""

    time_s: float = 0.0
    sent: float | None = None
    received: float | None = None
    shares: dict[str, float] = field(default_factory=dict)
    up: bool | None = None
    changes: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})


class NicCollector:
    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._reader = PortReader(setup.tree, setup.clock)
        self._before: dict[tuple[str, int], _Before] = {}
        self.missing: tuple[str, ...] = ()

    def go_on(self, before: "NicCollector", gone: Gone) -> None:  # noqa: ARG002
        """Begin with what was counted of the ports before a reload."""
        self._before = before._before

    def collect(self) -> Iterator[Sample]:
        """Yield the state and the counters of every port; a host without RDMA has none."""
        found = self._reader.read()
        if isinstance(found, Missing):
            self.missing = (found.missing,)
            return
        ports, devices = found
        now_s = self._setup.clock.monotonic_s()
        for port in ports:
            yield from self._port(port, now_s)
        for device in devices:
            for name, value in device.counters.items():
                if kind_of(name) == "counter":
                    yield DEVICE_RAW.sample(float(value), self._setup.node, device.device, name)
                if name == "reg_mr_err":
                    yield REGISTRATION_ERRORS.sample(float(value), self._setup.node, device.device)
        self.missing = tuple(
            f"{port.device}/{port.port}: {why}" for port in ports for why in list(port.unreadable.values())[:2]
        )

    def _port(self, port: PortReading, now_s: float) -> Iterator[Sample]:
        labels = (self._setup.node, port.device, str(port.port))
        before = self._before.setdefault((port.device, port.port), _Before())
        yield from _state(port, labels, before)
        for counted in COUNTED:
            value = _value(counted, port)
            if value is not None:
                yield Sample(counted.metric, labels, value)
        yield from _utilisation(port, labels, before, now_s)
        # The name of a folder that is not there (rxe and EFA have no `counters`) is no counter.
        yield UNREADABLE.sample(float(sum("/" in name for name in port.unreadable)), *labels)
        for name, value in port.counters.items():
            yield Sample(RAW, (*labels, "pma", name), float(value))
            if value == GREATEST.get(name):
                yield SATURATED.sample(1.0, *labels, name)
        for name, value in port.hw_counters.items():
            kind = kind_of(name)
            if kind == "counter":
                yield Sample(RAW, (*labels, "hw", name), float(value))
            elif kind == "level":
                yield LEVEL.sample(float(value), *labels, name)
            if name in OPERATIONS:
                yield OPERATION_BYTES.sample(float(value), *labels, OPERATIONS[name])


def _value(one: Counted, port: PortReading) -> float | None:
    """Return the canonical counter's value from the first of its names that the port has."""
    for name, factor in one.pma:
        if name in port.counters:
            return float(port.counters[name] * factor)
    for name in one.hw:
        if name in port.hw_counters:
            return float(port.hw_counters[name])
    return None


def _state(port: PortReading, labels: tuple[str, ...], before: _Before) -> Iterator[Sample]:
    if not isinstance(port.state, Missing):
        up = port.state == "ACTIVE"
        if before.up is not None and up != before.up:
            before.changes["up" if up else "down"] += 1
        before.up = up
        yield UP.sample(float(up), *labels)
    if not isinstance(port.rate_gbps, Missing):
        yield SPEED.sample(port.rate_gbps * 1e9 / 8, *labels)
    yield from (LINK_CHANGES.sample(float(count), *labels, to) for to, count in before.changes.items())


def _utilisation(port: PortReading, labels: tuple[str, ...], before: _Before, now_s: float) -> Iterator[Sample]:
    """Yield the share of the rate since the last collection; none after a reset, nor where it is impossible.

    Over too short a time the last share stands.
    """
    sent, received = _value(TRANSMIT, port), _value(RECEIVE, port)
    elapsed_s = now_s - before.time_s
    if not before.time_s or elapsed_s >= SHORTEST_S:
        shares: dict[str, float] = {}
        if before.time_s and not isinstance(port.rate_gbps, Missing) and port.rate_gbps > 0:
            for direction, old, new in (("transmit", before.sent, sent), ("receive", before.received, received)):
                if old is not None and new is not None and new >= old:
                    share = (new - old) / elapsed_s / (port.rate_gbps * 1e9 / 8)
                    if share <= 1.05:  # counters and clocks are read some milliseconds apart
                        shares[direction] = min(1.0, share)
        before.time_s, before.sent, before.received, before.shares = now_s, sent, received, shares
    yield from (UTILISATION.sample(share, *labels, direction) for direction, share in before.shares.items())


def create(setup: Setup) -> NicCollector:
    return NicCollector(setup)
