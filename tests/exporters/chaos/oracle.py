"""What each series of a scrape must be: by what is true of its source, or absent while that is in trouble."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.exporters.chaos.world import World

_LINE = re.compile(r"(?P<series>[a-zA-Z_:][a-zA-Z0-9_:]*(\{.*\})?) (?P<value>\S+)")
_ENGINE = re.compile(r'[{,]engine="([^"]*)"')
_HOST = ("kvdiag_rdma_port_", "kvdiag_rdma_device_", "kvdiag_netdev_", "kvdiag_tcp_", "kvdiag_ip_")
_OWN = (
    "kvdiag_collector_", "kvdiag_exporter_", "kvdiag_finding", "kvdiag_records_", "kvdiag_recorder_",
    "kvdiag_otlp_", "kvdiag_ttft", "kvdiag_transfer_", "kvdiag_handle_", "kvdiag_metric_", "kvdiag_attribution_",
    "kvdiag_rdma_port_utilisation_ratio", "kvdiag_rdma_port_link_changes_total", "kvdiag_rdma_port_unreadable",
    "kvdiag_nixl_heartbeat", "kvdiag_nixl_agents", "kvdiag_engine_metrics_read_seconds", "kvdiag_engine_metrics_up",
    "kvdiag_engine_log", "kvdiag_engine_missing_ranks", "kvdiag_engine_up",
)  # fmt: skip
"""Series about the exporter itself, or derived: they obey bounds, not a source."""
_PROCESS = (
    "kvdiag_engine_start_time", "kvdiag_engine_cpu", "kvdiag_engine_resident", "kvdiag_engine_pinned",
    "kvdiag_engine_locked", "kvdiag_engine_memlock", "kvdiag_engine_open_fds", "kvdiag_engine_threads",
    "kvdiag_engine_processes", "kvdiag_engine_pod",
)  # fmt: skip
_CLOSE = 1e-9
_IMPOSSIBLE = "kvdiag_metric_impossible_values_total"


def parse(text: str) -> dict[str, float]:
    """Return the series of an exposition; ValueError names a line that is none, or one that comes twice."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"no series: {line[:120]!r}")
        if match["series"] in found:
            raise ValueError(f"twice: {match['series']}")
        found[match["series"]] = float(match["value"])
    return found


def group_of(series: str) -> str:
    """Return whose trouble the series may be absent in; empty for the exporter's own."""
    if series.startswith(_OWN):
        return ""
    if series.startswith(_HOST):
        return "process" if 'engine="vllm-prefill"' in series else "host"
    if series.startswith("kvdiag_nixl_"):
        return "nixl"
    if series.startswith(_PROCESS):
        return "process"
    engine = _ENGINE.search(series)
    return f"engine {engine[1]}" if engine and series.startswith("kvdiag_engine_") else "unknown"


@dataclass
class Oracle:
    """`base` are the series when every factor was one; `complaints` what was wrong so far, the first of each kind."""

    world: World
    age_s: float
    base: dict[str, float] = field(default_factory=dict)
    growing: dict[str, str] = field(default_factory=dict)
    complaints: dict[str, str] = field(default_factory=dict)
    checked: int = 0
    _last: dict[str, float] = field(default_factory=dict)
    _last_end_s: float = 0.0
    counted: dict[str, Callable[[float, float], tuple[float, float]]] = field(default_factory=dict)

    def learn(self, first: Mapping[str, float], later: Mapping[str, float], factor: int) -> None:
        """Take as true what a healthy exporter shows at factor one; a series that is `factor` times as much later
        grows, and one that is neither that nor the same has no truth here: ValueError.
        """
        for series, value in first.items():
            group = group_of(series)
            if not group:
                continue
            if group == "unknown" or series not in later:
                raise ValueError(f"{series}: {group}, {later.get(series)}")
            if abs(later[series] - value * factor) <= _CLOSE * abs(value * factor) and value:
                self.growing[series] = group
            elif later[series] != value:
                raise ValueError(f"{series} was {value:.17g} and is {later[series]:.17g} at factor {factor}")
            self.base[series] = value

    def check(self, text: str, start_s: float, end_s: float, when: str) -> None:
        """Judge a scrape that was asked for and answered at these monotonic times."""
        self.checked += 1
        try:
            found = parse(text)
        except ValueError as error:
            self.complain("exposition", f"{when}: {error}")
            return
        since_s = start_s - self.age_s
        for series in found.keys() - self.base.keys():
            group = group_of(series)
            if group:
                self.complain(f"unexpected {group}", f"{when}: {series} {found[series]:g} was never there before")
        for series, value in self.base.items():
            group = group_of(series)
            if series not in found:
                if not self.world.troubles.any(group, since_s, end_s):
                    self.complain(f"hidden {series.partition('{')[0]}", f"{when}: {series} is missing without a reason")
                continue
            low = high = 1
            if series in self.growing:
                factor = self.world.engines[group[7:]].factor if group.startswith("engine ") else self.world.host
                low, high = factor.between(since_s, end_s)
            slack = _CLOSE * abs(value) * high
            if not value * low - slack <= found[series] <= value * high + slack:
                self.complain(
                    f"wrong {series.partition('{')[0]}",
                    f"{when}: {series} is {found[series]:.17g}, not {value * low:g} to {value * high:g}",
                )
        self._own(found, start_s, end_s, when)

    def _own(self, found: Mapping[str, float], start_s: float, end_s: float, when: str) -> None:
        for series, value in found.items():
            name = series.partition("{")[0]
            if group_of(series):
                continue
            if not value < float("inf"):
                self.complain(f"infinite {name}", f"{when}: {series} is {value}")
            if name.endswith("_ratio") and not 0 <= value <= 1 + 1e-6:
                self.complain(f"no share {name}", f"{when}: {series} is {value}")
            if name == _IMPOSSIBLE and value:
                self.complain(f"impossible {series}", f"{when}: {series} is {value}, and all was possible")
            counts = name.endswith(("_total", "_count", "_bucket")) and start_s >= self._last_end_s
            if counts and value < self._last.get(series, 0.0):
                self.complain(f"falls {name}", f"{when}: {series} was {self._last[series]:g} and is {value:g}")
            if series in self.counted:
                low, high = self.counted[series](start_s - self.age_s, end_s)
                if not low <= value <= high:
                    self.complain(f"miscounted {name}", f"{when}: {series} is {value:g}, not {low:g} to {high:g}")
        for series in self.counted.keys() - found.keys():
            self.complain(f"hidden {series}", f"{when}: {series} is missing without a reason")
        if start_s >= self._last_end_s:
            self._last, self._last_end_s = {one: value for one, value in found.items() if not group_of(one)}, end_s

    def complain(self, kind: str, text: str) -> None:
        """Note something wrong, each kind once."""
        self.complaints.setdefault(kind, text)
