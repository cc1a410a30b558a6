"""TensorRT-LLM's transfer files: one row per transfer, followed as the engine appends them.

Two writers exist: the Python transceiver's `BASE_INSTANCE_RANK.csv` names its columns; the C++ one's
`rank_R_send.csv` and `rank_R_recv.csv` have (Delay, Duration, Bandwidth) once per measure, in ms and 10^9 bit/s.
"""

import csv
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

READ_BYTES = 1 << 20
"""Most that one reading of one file takes in: some ten thousand transfers."""

_RANK_FILE = re.compile(r"rank_(?P<rank>\d+)_(?P<side>send|recv)\.csv")
_LAST_NUMBER = re.compile(r"_(?P<rank>\d+)\.csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvTransfer:
    """One transfer as one rank saw it, in s and B; `derived_size`: bytes are time × speed. None where not written."""

    rank: str
    kind: str
    seconds: float
    bytes: float | None = None
    derived_size: bool = False
    descriptors: float | None = None
    queue_s: float | None = None
    prepare_s: float | None = None


class CsvFollower:
    """Reads each whole row once, through truncation and replacement; `invalid` counts rows that are none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.invalid = 0
        self._offset = 0
        self._identity = (0, 0)
        self._rest = b""
        self._header: list[str] | None = None

    def read(self) -> list[CsvTransfer]:
        """Return the transfers appended since the last call; OSError where the file cannot be read."""
        with self.path.open("rb") as file:
            status = os.fstat(file.fileno())
            if (status.st_dev, status.st_ino) != self._identity or status.st_size < self._offset:
                self._identity = (status.st_dev, status.st_ino)
                self._offset, self._rest, self._header = 0, b"", None
            file.seek(self._offset)
            data = file.read(READ_BYTES)
        self._offset += len(data)
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()[-READ_BYTES:]
        return [one for line in lines for one in self._row(line)]

    def _row(self, line: bytes) -> Iterator[CsvTransfer]:
        cells = next(csv.reader([line.decode(errors="replace").strip()]), [])
        if not cells:
            return
        if self._header is None:
            self._header = [cell.strip() for cell in cells]
            return
        try:
            yield from self._transfers(cells)
        except ValueError:
            self.invalid += 1

    def _transfers(self, cells: Sequence[str]) -> Iterator[CsvTransfer]:
        assert self._header is not None
        if "transfer_latency_ms" in self._header:
            match = _LAST_NUMBER.search(self.path.name)
            row = dict(zip(self._header, cells, strict=True))
            yield CsvTransfer(
                rank=match["rank"] if match else "",
                kind=row.get("task_type", "").lower()[:32] or "send",
                seconds=_number(row["transfer_latency_ms"]) / 1e3,
                bytes=_number(row["transfer_size_bytes"]),
                descriptors=_number(row["transfer_entry_count"]),
                queue_s=_number(row["queue_latency_ms"]) / 1e3,
                prepare_s=_number(row["prepare_args_latency_ms"]) / 1e3,
            )
            return
        match = _RANK_FILE.fullmatch(self.path.name)
        if match is None or self._header[0] != "RequestID":
            raise ValueError(f"{self.path.name} is none of TensorRT-LLM's transfer files")
        first = next((place for place, name in enumerate(self._header) if name.startswith("Delay")), len(self._header))
        measures = cells[first:]
        if not measures or len(measures) % 3:
            raise ValueError("the measures are not threes of delay, duration and bandwidth")
        for delay, duration, speed in zip(measures[::3], measures[1::3], measures[2::3], strict=True):
            seconds = _number(duration) / 1e3
            yield CsvTransfer(
                rank=match["rank"],
                kind=match["side"],
                seconds=seconds,
                bytes=seconds * _number(speed) * 1e9 / 8,
                derived_size=True,
                queue_s=_number(delay) / 1e3,
            )


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{text} is no amount")
    return value
