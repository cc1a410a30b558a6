"""Spans in OTLP's JSON: one export a line, as the collector's file exporter writes them, or one document."""

from pathlib import Path

from kvdiag.derive.otlp_json import from_json
from kvdiag.derive.span_readers import Names, readers
from kvdiag.errors import InputError
from kvdiag.model.record import HandleTransfer, RequestPiece
from kvdiag.model.request_file import RequestFile, SpanFile
from kvdiag.model.span import Span
from kvdiag.sources._json_lines import decoded_lines, seconds_of


def read(path: Path) -> tuple[RequestFile, ...]:
    """Return what the known programs' spans tell of requests; InputError (file, line, field) where they cannot be."""
    notes: list[str] = []
    found = _Reading()
    with path.open("rb") as file:
        first = file.readline().strip()
    if first.endswith(b"}"):
        for _ in decoded_lines(path, notes, found.take):
            pass
    else:
        try:
            found.take(path.read_bytes())
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
    return (
        SpanFile(
            path=str(path),
            pieces=tuple(found.pieces),
            spans=found.spans,
            foreign=found.foreign,
            invalid=found.invalid,
            notes=tuple(notes),
        ),
    )


class _Reading:
    def __init__(self) -> None:
        self.pieces: list[RequestPiece | HandleTransfer] = []
        self.spans = self.foreign = self.invalid = 0
        self._readers, self._names = readers(), Names(())

    def take(self, body: bytes) -> None:
        """Read one export; InputError names the field that is not as it should be."""
        for span in list(from_json(body)):
            self._take(span)

    def _take(self, span: Span) -> None:
        self.spans += 1
        if not 0 < span.start_s <= span.end_s:
            self.invalid += 1
            return
        seconds_of(f"startTimeUnixNano of span {span.name[:64]!r}", span.start_s * 1e9, 1e9)
        for reader in self._readers:
            found = reader(span, self._names)
            if found is not None:
                self.pieces += list(found)
                return
        self.foreign += 1
