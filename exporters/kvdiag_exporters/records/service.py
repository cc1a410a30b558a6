"""Everything that joins and keeps records, put together from the configuration; started by the exporter only."""

import importlib.util
import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kvdiag.derive.join import Joiner
from kvdiag.derive.span_readers import Names
from kvdiag.errors import UndeterminedError
from kvdiag.model.transfer import TransferRecord
from kvdiag.sources.base import Clock
from kvdiag_exporters.collectors.base import Engine
from kvdiag_exporters.going_on import Gone
from kvdiag_exporters.precedence import Precedence
from kvdiag_exporters.recorder import roles_of
from kvdiag_exporters.records.attribution import OnlineAttribution
from kvdiag_exporters.records.counter_window import CounterWindow
from kvdiag_exporters.records.followers import Followers
from kvdiag_exporters.records.hub import Hub
from kvdiag_exporters.records.intake import Intake
from kvdiag_exporters.records.log_reader import LogReader
from kvdiag_exporters.records.settings import RecordsConfig, otlp_address
from kvdiag_exporters.records.window import RecordWindow
from kvdiag_exporters.stream import RecordStream
from kvdiag_exporters.web_config import load as load_web

if TYPE_CHECKING:
    from kvdiag_exporters.records.forward import Forward
    from kvdiag_exporters.records.otlp import Export
    from kvdiag_exporters.records.otlp_grpc import OtlpGrpc
    from kvdiag_exporters.records.otlp_http import OtlpHttp

_log = logging.getLogger(__name__)
POLL_S = 0.5
INTAKE_WITHIN_S = 0.4
SEND_WITHIN_S = 0.5
STOP_WITHIN_S = 1.0
"""For all waits of the end together, which come one after the other."""
_PACKAGES = {
    "otlp_http": ("opentelemetry.proto",),
    "otlp_grpc": ("grpc", "opentelemetry.proto"),
    "export": ("opentelemetry.exporter.otlp.proto.http",),
    "forward": ("opentelemetry.exporter.otlp.proto.http",),
}


class _Export(Protocol):
    @property
    def dropped(self) -> int: ...

    @property
    def sent(self) -> int: ...

    def take(self, records: Sequence[TransferRecord]) -> None: ...

    def stop(self, within_s: float) -> None: ...


class Records:
    """`hub` joins, `window` keeps, `followers` read files, `attribution` explains; `start` begins, `stop` ends it all.

    `received` has the counts of the OTLP receivers, which know no spans: connections and requests.
    """

    def __init__(
        self,
        config: RecordsConfig,
        engines: Sequence[Engine],
        node: str,
        stream: RecordStream,
        clock: Clock,
        precedence: Precedence | None = None,
        before: "Records | None" = None,
    ) -> None:
        self.config = config
        precedence = precedence or Precedence()
        self.hub = Hub(Names(engines), clock, Joiner(config.wait_s, config.settle_s), precedence)
        self.intake = Intake(self.hub.take_spans, precedence)
        self.followers = Followers(engines, LogReader(clock.wall_s))
        self.window: RecordWindow = RecordWindow() if before is None else before.window
        roles = roles_of(engines) or {node: "both"}
        self.counters = CounterWindow({engine.name: engine.node for engine in engines}, roles)
        self.attribution = OnlineAttribution(
            self.window, self.counters, roles, clock, config.attribution_interval_s or 60.0, config.window_s
        )
        self._received_before: Counter[str] = Counter()
        self._rejected_before = 0
        self._before = before
        self.addresses: dict[str, str] = {}
        self.export: _Export | None = None
        self.forward: Forward | None = None
        self._http: OtlpHttp | None = None
        self._grpc: OtlpGrpc | None = None
        self._receiving = ExitStack()
        self._stop = threading.Event()
        self._stopped = self._told = False
        self._thread = threading.Thread(target=self._follow, name="follow", daemon=True)
        self.hub.on_rows(stream.give)
        self.hub.on_pieces(self.window.add_pieces)
        stream.add_sink(self.window.add_requests)

    @property
    def received(self) -> dict[str, int]:
        if self._http is None:
            return {}
        return {reason: count + self._received_before[reason] for reason, count in self._http.counts.items()}

    @property
    def grpc_rejected(self) -> int | None:
        """Calls that were refused; None where nobody listens."""
        return None if self._grpc is None else self._grpc.rejected + self._rejected_before

    def go_on(self, before: "Records", gone: Gone) -> None:
        """Count on, and go on waiting, where what served before a reload ended."""
        self.hub.go_on(before.hub)
        self.followers.go_on(before.followers, gone)
        self.counters.go_on(before.counters)
        self.intake.refused = before.intake.refused
        self.attribution.last = before.attribution.last
        self._received_before = Counter(before.received)
        self._rejected_before = before.grpc_rejected or 0

    def start(self, stream: RecordStream) -> None:
        """Listen, follow and attribute.

        UnavailableError where an address cannot be listened on, UndeterminedError where a package is missing.
        """
        require_packages(self.config)
        web = None if self.config.web_config is None else load_web(Path(self.config.web_config))
        with ExitStack() as failing:
            failing.callback(self._receiving.close)
            self.intake.start()
            failing.callback(self.intake.stop, 0.0)
            if self.config.otlp_http is not None:
                from kvdiag_exporters.records.otlp_http import OtlpHttp

                http = OtlpHttp(*otlp_address("otlp_http", self.config.otlp_http), self._accept, web=web)
                self._receiving.callback(http.stop)
                self.addresses["otlp_http"] = http.address
                self._http = http
                http.start()
            if self.config.otlp_grpc is not None:
                from kvdiag_exporters.records.otlp_grpc import OtlpGrpc

                grpc = OtlpGrpc(*otlp_address("otlp_grpc", self.config.otlp_grpc), self._accept, web=web)
                self._grpc = grpc
                self._receiving.callback(grpc.stop)
                self.addresses["otlp_grpc"] = grpc.address
                grpc.start()
            failing.pop_all()
        if self.config.export is not None:
            from kvdiag_exporters.records.otlp_export import OtlpExport

            export = OtlpExport(self.config.export)
            if self._before is not None and self._before.export is not None:
                export.count_on(self._before.export.sent, self._before.export.dropped)
            self.export = export
            stream.add_sink(export.take)
        if self.config.forward is not None:
            from kvdiag_exporters.records.forward import Forward

            self.forward = Forward(self.config.forward.endpoint)
            if self._before is not None and self._before.forward is not None:
                self.forward.sent, self.forward.dropped = self._before.forward.sent, self._before.forward.dropped
            self.hub.forward = self.forward.take
            self.forward.start()
        self._before = None  # or every reload would keep all of the ones before it
        self.hub.start()
        if self.followers:
            self._poll()  # at once: a log counts from its end now, not from whenever it is first looked at
            self._thread.start()
        if self.config.attribution_interval_s:
            self.attribution.start()

    def stop(self, within_s: float = STOP_WITHIN_S, *, goes_on: bool = False) -> None:
        """Take nothing more in, read what files still hold, and give on what is still waited for, or leave that to the
        one that goes on; all waits together take `within_s`.
        """
        deadline_s = time.monotonic() + within_s

        def left(longest_s: float) -> float:
            return max(0.0, min(longest_s, deadline_s - time.monotonic()))

        self._stop.set()
        self.attribution.stop()
        if self._stopped:
            return
        self._stopped = True
        if self._thread.is_alive():
            self._thread.join(timeout=left(0.3))
        self._poll()
        self._receiving.close()  # the last of it is the intake: what it has is read, and nothing more comes to the hub
        self.intake.stop(left(INTAKE_WITHIN_S))
        self.hub.stop(left(0.3), goes_on=goes_on)
        for sender in (self.forward, self.export):
            if sender is not None:
                sender.stop(left(SEND_WITHIN_S))

    def _accept(self, export: "Export") -> bool:
        return self.intake.offer(export, export.size, export.count)

    def _follow(self) -> None:
        while not self._stop.wait(POLL_S):
            try:
                self._poll()
            except Exception as error:  # one bad line of one file must not end the following of all
                if not self._told:
                    _log.warning("following files failed; it goes on, and is not told again: %s", error)
                self._told = True

    def _poll(self) -> None:
        if self.followers:
            pieces = self.followers.poll()
            if pieces:
                self.hub.take(pieces)


def require_packages(config: RecordsConfig) -> None:
    """Raise UndeterminedError where a package that a field needs is not installed."""
    for field, packages in _PACKAGES.items():
        if getattr(config, field) is not None:
            for package in packages:
                _require(package, field)


def _require(package: str, field: str) -> None:
    """Raise UndeterminedError where a package that a field needs is not installed."""
    try:
        found = importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # a package above it is missing
        found = False
    if not found:
        raise UndeterminedError(f"records.{field} needs the Python package {package}: pip install 'kvdiag[exporter]'")
