"""What only ethtool shows of the network cards behind RDMA ports: pauses by priority, discards, link events."""

import re
from collections.abc import Iterator

from kvdiag.model.missing import Missing
from kvdiag.model.nic_counters import AllNicCounters
from kvdiag.sources import nic_counters
from kvdiag_exporters.catalog import Metric, Recorded, Sample
from kvdiag_exporters.collectors.base import Setup

READ_EVERY_S = 5.0
"""A card has over a thousand such counters, and asking for them stops its driver's own bookkeeping for a moment."""

_DEVICE = ("node", "device")
_PRIORITY = (*_DEVICE, "direction", "priority")

PAUSES = Metric(
    name="kvdiag_netdev_pause_frames_total",
    kind="counter",
    labels=_PRIORITY,
    help="Pause frames by priority (PFC), or `global` of the whole link; received ones stop this host's sending.",
)
PAUSED = Metric(
    name="kvdiag_netdev_pause_seconds_total",
    kind="counter",
    unit="seconds",
    labels=_PRIORITY,
    help="Time that a priority was paused; received: this host could not send.",
    recorded=(Recorded(name="nic.pause_us", unit="us", scale=1e6, where=(("direction", ("receive",)),)),),
)
PRIORITY_BYTES = Metric(
    name="kvdiag_netdev_priority_bytes_total",
    kind="counter",
    unit="bytes",
    labels=_PRIORITY,
    help="Bytes by priority: which one RoCE really uses.",
)
PRIORITY_DISCARDS = Metric(
    name="kvdiag_netdev_priority_discards_total",
    kind="counter",
    labels=(*_DEVICE, "priority"),
    help="Packets received and discarded for want of buffers, by priority; never on a lossless one.",
)
STORMS = Metric(
    name="kvdiag_netdev_pause_storms_total",
    kind="counter",
    labels=_DEVICE,
    help="Pause storms: this host paused its senders for too long.",
)
RAW = Metric(
    name="kvdiag_netdev_ethtool_total",
    kind="counter",
    labels=(*_DEVICE, "counter"),
    help="Other counters of flow control, loss and link health, by the driver's own names.",
)

METRICS = (PAUSES, PAUSED, PRIORITY_BYTES, PRIORITY_DISCARDS, STORMS, RAW)

# Names by driver: mlx5, bnxt_en, ice. pause_duration of mlx5 is in µs.
_PATTERNS = (
    (PAUSED, 1e-6, re.compile(r"(?P<direction>[rt]x)_prio(?P<priority>\d)_pause_duration")),
    (PAUSES, 1.0, re.compile(r"(?P<direction>[rt]x)_prio(?P<priority>\d)_pause")),
    (PAUSES, 1.0, re.compile(r"(?P<direction>[rt]x)_pfc_ena_frames_pri(?P<priority>\d)")),
    (PAUSES, 1.0, re.compile(r"(?P<direction>[rt]x)_priority_(?P<priority>\d)_xoff\.nic")),
    (PAUSES, 1.0, re.compile(r"(?P<direction>[rt]x)_(?:global_pause|pause_frames)")),
    (PAUSES, 1.0, re.compile(r"link_xoff_(?P<direction>[rt]x)\.nic")),
    (PRIORITY_BYTES, 1.0, re.compile(r"(?P<direction>[rt]x)_prio(?P<priority>\d)_bytes")),
    (PRIORITY_DISCARDS, 1.0, re.compile(r"rx_prio(?P<priority>\d)_(?:buf_discard|discards)")),
    (STORMS, 1.0, re.compile(r"tx_pause_storm_warning_events|tx_pfc_pause_storm\w*")),
)
_DIRECTIONS = {"rx": "receive", "tx": "transmit"}
_PER_PRIORITY = re.compile(r"prio\d|pri\d|priority_\d")
"""Other counters of a priority (packets, transitions) are left off: eight of each say little more."""


class NicEthtoolCollector:
    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._read_s = float("-inf")
        self._found: AllNicCounters | Missing = Missing("not read yet")
        self.missing: tuple[str, ...] = ()

    def collect(self) -> Iterator[Sample]:
        """Yield the counters of every interface on a card with an RDMA device, at most READ_EVERY_S old."""
        now_s = self._setup.clock.monotonic_s()
        if now_s - self._read_s >= READ_EVERY_S:
            self._found, self._read_s = nic_counters.SOURCE.read(self._setup.context), now_s
        if isinstance(self._found, Missing):
            self.missing = (self._found.missing,)
            return
        self.missing = tuple(one.unreadable for one in self._found.interfaces if one.unreadable)
        for interface in self._found.interfaces:
            yield from _samples(interface.counters, (self._setup.node, interface.name))


def _samples(counters: dict[str, int], labels: tuple[str, str]) -> Iterator[Sample]:
    seen: dict[tuple[Metric, tuple[str, ...]], float] = {}
    for name, value in counters.items():
        for metric, factor, pattern in _PATTERNS:
            match = pattern.fullmatch(name)
            if match is not None:
                groups = match.groupdict()
                extra = []
                if "direction" in metric.labels:
                    extra.append(_DIRECTIONS[groups["direction"]])
                if "priority" in metric.labels:
                    extra.append(groups.get("priority", "global"))
                key = (metric, (*labels, *extra))
                seen[key] = max(seen.get(key, 0.0), value * factor)  # a driver may count the same under two names
                break
        else:
            if not _PER_PRIORITY.search(name):
                yield RAW.sample(float(value), *labels, name)
    yield from (metric.sample(value, *key) for (metric, key), value in seen.items())


def create(setup: Setup) -> NicEthtoolCollector:
    return NicEthtoolCollector(setup)
