"""Lines of engine logs, as pieces of records, and as counts of those with a known meaning, by kind."""

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import kvdiag_exporters.records.logs
from kvdiag.derive.log_lines import DETECTORS
from kvdiag.model.record import Piece

LINE_BYTES = 8192
"""Looked at of one line: vLLM's debug lines hold whole prompts."""

_Read = Callable[[str, float], Iterable[Piece] | None]


@dataclass(frozen=True, slots=True)
class LogLine:
    """What one line told; `kinds` are those of the known lines (kvdiag.derive.log_lines)."""

    pieces: tuple[Piece, ...]
    kinds: tuple[str, ...]


class LogReader:
    """`decode` gives what a line tells, None of one that tells nothing; ValueError where it should and does not."""

    def __init__(self, wall_s: Callable[[], float]) -> None:
        self._wall_s = wall_s
        self._readers = _readers()

    def decode(self, line: bytes) -> LogLine | None:
        """Return pieces and kinds of a line."""
        part = line[:LINE_BYTES]
        pieces: tuple[Piece, ...] = ()
        for literals, read in self._readers:
            if any(one in part for one in literals):
                found = read(part.decode(errors="replace"), self._wall_s())
                if found is not None:
                    pieces = tuple(found)
                    break
        kinds = []
        for detector in DETECTORS:
            if detector.literal in part and detector.kind not in kinds:
                text = part.decode(errors="replace")
                if detector.read(text) is not None:
                    kinds.append(detector.kind)
        return LogLine(pieces, tuple(kinds)) if pieces or kinds else None


def _readers() -> Sequence[tuple[tuple[bytes, ...], _Read]]:
    found = sorted(pkgutil.iter_modules(kvdiag_exporters.records.logs.__path__), key=lambda one: one.name)
    modules = [importlib.import_module(f"kvdiag_exporters.records.logs.{one.name}") for one in found]
    return [(module.LITERALS, module.read) for module in modules]
