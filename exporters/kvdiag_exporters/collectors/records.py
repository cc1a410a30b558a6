"""Per-request records: time to first token, every stage of it, bytes and descriptors, as histograms per node pair."""

from collections.abc import Iterator, Sequence
from operator import attrgetter

from kvdiag.model.transfer import STAGES, TransferRecord
from kvdiag.sources.records import READ_BYTES
from kvdiag_exporters.catalog import Exemplar, Metric, Sample
from kvdiag_exporters.collectors.base import Setup
from kvdiag_exporters.going_on import Gone
from kvdiag_exporters.histogram import Histograms
from kvdiag_exporters.stream import PIECE_BYTES

_PAIR = ("prefill_node", "decode_node", "direction")
# 100 µs to a minute in steps of 1, 2.5 and 5: from one posted descriptor to a queue that has stopped.
SECONDS_BOUNDS = (
    1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
BYTES_BOUNDS = tuple(float(4**power) for power in range(7, 19))  # 16 KiB to 64 GiB
COUNT_BOUNDS = tuple(float(4**power) for power in range(11))  # 1 to about a million

_STAGES = tuple(stage.removesuffix("_s") for stage in STAGES)
_stages = attrgetter(*STAGES)
_ID_LENGTH = 64
"""Of a request id in an exemplar: with its name, and a trace id and that name, 114 of the 128 characters there are."""

TTFT = Metric(
    name="kvdiag_ttft_seconds",
    kind="histogram",
    unit="seconds",
    labels=_PAIR,
    help="Time from a request's arrival to its first token.",
)
STAGE = Metric(
    name="kvdiag_transfer_stage_seconds",
    kind="histogram",
    unit="seconds",
    labels=(*_PAIR, "stage"),
    help="Time a request spent in each stage between arrival and first token.",
)
BYTES = Metric(
    name="kvdiag_transfer_size_bytes",
    kind="histogram",
    unit="bytes",
    labels=_PAIR,
    help="Bytes of KV cache moved for a request.",
)
DESCRIPTORS = Metric(
    name="kvdiag_transfer_descriptors",
    kind="histogram",
    labels=_PAIR,
    help="Descriptors of a request's transfers.",
)
READ = Metric(name="kvdiag_records_read_total", kind="counter", help="Per-request records read, each request once.")
DROPPED = Metric(
    name="kvdiag_records_dropped_total",
    kind="counter",
    labels=("reason",),
    help="Lines that gave no new record: duplicate (request seen before) or invalid (no record).",
)
IMPOSSIBLE = Metric(
    name="kvdiag_records_impossible_values_total",
    kind="counter",
    help="Negative times and sizes in records, left out of the histograms.",
)
BACKLOG = Metric(
    name="kvdiag_records_backlog_bytes",
    kind="gauge",
    unit="bytes",
    help="Bytes of the record files that have not been read yet.",
)

METRICS = (TTFT, STAGE, BYTES, DESCRIPTORS, READ, DROPPED, IMPOSSIBLE, BACKLOG)


class RecordsCollector:
    def __init__(self, setup: Setup) -> None:
        self._stream = setup.stream
        self._ttft = Histograms(TTFT, SECONDS_BOUNDS)
        self._stage = Histograms(STAGE, SECONDS_BOUNDS)
        self._bytes = Histograms(BYTES, BYTES_BOUNDS)
        self._descriptors = Histograms(DESCRIPTORS, COUNT_BOUNDS)
        self._read = 0
        self._impossible = 0
        self.missing: tuple[str, ...] = ()
        for engine in setup.engines:
            if engine.records is not None:
                self._stream.follow(engine.records)
        self._stream.add_sink(self.observe)

    def go_on(self, before: "RecordsCollector", gone: Gone) -> None:
        """Begin with what was counted before a reload."""
        self._read, self._impossible = before._read, before._impossible
        self._ttft.go_on(before._ttft, gone)
        self._stage.go_on(before._stage, gone)
        self._bytes.go_on(before._bytes, gone)
        self._descriptors.go_on(before._descriptors, gone)

    def observe(self, records: Sequence[TransferRecord]) -> None:
        """Count new records into the histograms; a value that is absent counts nowhere."""
        self._read += len(records)
        for record in records:
            pair = (record.prefill_node or "", record.decode_node or "", record.direction or "")
            seen = _labels(record)
            self._count(self._ttft, record.ttft_s, pair, seen, record.arrival_s)
            self._count(self._bytes, record.bytes, pair, seen, record.arrival_s)
            self._count(self._descriptors, record.descriptors, pair, seen, record.arrival_s)
            for stage, value in zip(_STAGES, _stages(record), strict=True):
                if value is not None:
                    self._count(self._stage, value, (*pair, stage), seen, record.arrival_s)

    def collect(self) -> Iterator[Sample]:
        """Read what was appended and yield the histograms."""
        self._stream.poll(PIECE_BYTES if self._stream.followed else READ_BYTES)
        followers = self._stream.followers
        self.missing = (*self._stream.missing, *(one.last_error for one in followers if one.last_error))
        for histograms in (self._ttft, self._stage, self._bytes, self._descriptors):
            yield from histograms.samples()
        yield READ.sample(float(self._read))
        yield DROPPED.sample(float(self._stream.duplicates), "duplicate")
        yield DROPPED.sample(float(self._stream.invalid), "invalid")
        yield IMPOSSIBLE.sample(float(self._impossible))
        yield BACKLOG.sample(float(self._stream.backlog_bytes()))

    def _count(
        self,
        histograms: Histograms,
        value: float | None,
        labels: tuple[str, ...],
        seen: tuple[tuple[str, str], ...],
        time_s: float,
    ) -> None:
        if value is None:
            return
        if value < 0:
            self._impossible += 1
        else:
            histograms.observe(value, labels, Exemplar(seen, value, time_s))


def _labels(record: TransferRecord) -> tuple[tuple[str, str], ...]:
    """Return the labels of the record's exemplars: its trace, and its id as far as OpenMetrics has room for it."""
    trace = (("trace_id", record.trace_id[:32]),) if record.trace_id else ()
    return (*trace, ("request_id", record.request_id[:_ID_LENGTH]))


def create(setup: Setup) -> RecordsCollector | None:
    followed = any(one.records is not None for one in setup.engines)
    return RecordsCollector(setup) if followed or setup.records is not None else None
