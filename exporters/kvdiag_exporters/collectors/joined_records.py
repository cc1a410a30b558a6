"""The joining of per-request records: what came in, what was joined, what was dropped, and single transfers."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kvdiag.model.record import HandleTransfer, Piece
from kvdiag_exporters.catalog import Exemplar, Metric, Sample
from kvdiag_exporters.collectors.base import Setup
from kvdiag_exporters.collectors.records import BYTES_BOUNDS, COUNT_BOUNDS, SECONDS_BOUNDS
from kvdiag_exporters.going_on import Gone
from kvdiag_exporters.histogram import MOST_SERIES, OVERFLOW, Histograms

if TYPE_CHECKING:
    from kvdiag_exporters.records.service import Records

_HANDLE = ("node", "direction", "transport")


def _counter(name: str, help_: str, *labels: str) -> Metric:
    return Metric(name=name, kind="counter", labels=labels, help=help_)


SPANS = _counter(
    "kvdiag_records_spans_total",
    "Spans by what became of them: read (foreign or invalid of those), or refused: no room, the sender keeps them.",
    "result",
)
PIECES = _counter("kvdiag_records_pieces_total", "Pieces of records taken from spans, logs and step records.")
REQUESTS = _counter(
    "kvdiag_records_requests_total",
    "Requests given on: joined from both sides, or unjoined where one never came.",
    "result",
)
UNUSED = _counter(
    "kvdiag_records_pieces_dropped_total",
    "Pieces left out: late (request was given on), repeated, excess (too many of a request), nameless (no identity).",
    "reason",
)
EVICTED = _counter("kvdiag_records_evicted_total", "Requests given on before their time, to make room.")
OPEN = Metric(name="kvdiag_records_open", kind="gauge", help="Requests whose other pieces are waited for.")
INVALID = _counter("kvdiag_records_invalid_lines_total", "Lines of logs and step records that could not be understood.")
REFUSED = _counter(
    "kvdiag_otlp_http_dropped_total",
    "OTLP connections refused (too many) or overdue (too slow), and requests rejected (no export).",
    "reason",
)
REJECTED = _counter("kvdiag_otlp_grpc_rejected_total", "OTLP calls over gRPC of nobody known, or that were no export.")
EXPORTED = _counter("kvdiag_records_exported_total", "Requests sent on over OTLP, or dropped.", "result")
FORWARDED = _counter(
    "kvdiag_records_forwarded_total",
    "Pieces of requests given to the exporter that joins them, or dropped: too many waited, or nobody took them.",
    "result",
)
LOGGED = _counter(
    "kvdiag_engine_log_events_total",
    "Lines of engine logs with a known meaning, by kind: failures, and what an engine says of itself.",
    "node",
    "engine",
    "role",
    "kind",
)
DURATION = Metric(
    name="kvdiag_handle_transfer_seconds",
    kind="histogram",
    unit="seconds",
    labels=_HANDLE,
    help="Time of one transfer handle from its post until it was seen complete, as the initiating side tells.",
)
POST = Metric(
    name="kvdiag_handle_post_seconds",
    kind="histogram",
    unit="seconds",
    labels=_HANDLE,
    help="Time until the post of one transfer handle returned.",
)
BYTES = Metric(
    name="kvdiag_handle_size_bytes", kind="histogram", unit="bytes", labels=_HANDLE, help="Bytes of one handle."
)
DESCRIPTORS = Metric(
    name="kvdiag_handle_descriptors", kind="histogram", labels=_HANDLE, help="Descriptors of one handle."
)
FAILED = _counter(
    "kvdiag_handle_failures_total", "Failed transfer handles by what they failed with.", *_HANDLE, "error"
)

METRICS = (
    SPANS, PIECES, REQUESTS, UNUSED, EVICTED, OPEN, INVALID, REFUSED, REJECTED, EXPORTED, FORWARDED, LOGGED, DURATION,
    POST, BYTES, DESCRIPTORS, FAILED,
)  # fmt: skip


class JoinedRecordsCollector:
    def __init__(self, records: "Records") -> None:
        self._records = records
        self._columns = {
            "duration_s": Histograms(DURATION, SECONDS_BOUNDS),
            "post_s": Histograms(POST, SECONDS_BOUNDS),
            "bytes": Histograms(BYTES, BYTES_BOUNDS),
            "descriptors": Histograms(DESCRIPTORS, COUNT_BOUNDS),
        }
        self._failed: Counter[tuple[str, ...]] = Counter()
        self.missing: tuple[str, ...] = ()
        records.hub.on_pieces(self.observe)

    def go_on(self, before: "JoinedRecordsCollector", gone: Gone) -> None:
        """Begin with what was counted before a reload."""
        for column, histograms in self._columns.items():
            histograms.go_on(before._columns[column], gone)
        self._failed = Counter({key: one for key, one in before._failed.items() if not gone.has(FAILED, key)})

    def observe(self, pieces: Sequence[Piece]) -> None:
        """Count transfer handles; a failed one counts only as such."""
        for one in pieces:
            if not isinstance(one, HandleTransfer):
                continue
            labels = (one.node or "", one.direction or "", one.backend or "")
            if one.error:
                named = (*labels, one.error[:64])
                known = named in self._failed or len(self._failed) < MOST_SERIES
                self._failed[named if known else (OVERFLOW,) * len(named)] += 1
                continue
            trace = next((text for kind, text in one.keys if kind == "trace"), "")
            for column, histograms in self._columns.items():
                value = getattr(one, column)
                if value is not None and value >= 0:
                    seen = Exemplar((("trace_id", trace[:32]),), value, one.start_s or 0.0) if trace else None
                    histograms.observe(value, labels, seen)

    def collect(self) -> Iterator[Sample]:
        """Yield the counts so far."""
        hub, followers = self._records.hub, self._records.followers
        last = self._records.attribution.last
        unexplained = (f"attribution: {last.error}",) if last is not None and last.error else ()
        self.missing = (*followers.missing, *followers.errors, *unexplained)
        counts, joined = hub.counts, hub.joiner.counts
        for result in ("read", "foreign", "invalid"):
            yield SPANS.sample(float(getattr(counts, result)), result)
        yield SPANS.sample(float(self._records.intake.refused), "refused")
        yield PIECES.sample(float(counts.pieces))
        yield REQUESTS.sample(float(joined.joined), "joined")
        yield REQUESTS.sample(float(joined.unjoined), "unjoined")
        for reason in ("late", "repeated", "excess", "nameless"):
            yield UNUSED.sample(float(getattr(joined, reason)), reason)
        yield EVICTED.sample(float(joined.evicted))
        yield OPEN.sample(float(hub.joiner.open))
        yield INVALID.sample(float(followers.invalid))
        for reason, value in self._records.received.items():
            yield REFUSED.sample(float(value), reason)
        if self._records.grpc_rejected is not None:
            yield REJECTED.sample(float(self._records.grpc_rejected))
        if self._records.export is not None:
            yield EXPORTED.sample(float(self._records.export.sent), "sent")
            yield EXPORTED.sample(float(self._records.export.dropped), "dropped")
        if self._records.forward is not None:
            yield FORWARDED.sample(float(self._records.forward.sent), "sent")
            yield FORWARDED.sample(float(self._records.forward.dropped), "dropped")
        for (labels, kind), value in list(followers.events.items()):
            yield LOGGED.sample(float(value), *labels, kind)
        for histograms in self._columns.values():
            yield from histograms.samples()
        for labels_, value in list(self._failed.items()):
            yield FAILED.sample(float(value), *labels_)


def create(setup: Setup) -> JoinedRecordsCollector | None:
    return None if setup.records is None else JoinedRecordsCollector(setup.records)
