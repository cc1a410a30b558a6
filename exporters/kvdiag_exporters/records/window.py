"""The last while of records in bounded memory: whole ones to look at, columns of many to attribute."""

import math
import threading
from array import array
from collections import deque
from collections.abc import Sequence
from operator import attrgetter

import numpy as np

from kvdiag.derive.request_row import CLOCK_SLACK_S, OVERLAP_SLACK
from kvdiag.derive.thin import drawn
from kvdiag.model.bundle import Labels, RequestColumns
from kvdiag.model.record import HandleTransfer, Piece, WindowRecord
from kvdiag.model.transfer import STAGES, TransferRecord

MOST_SHOWN = 2000
"""Whole records of each kind, about 1 KB each."""
MOST_ROWS = 100_000
"""Requests in columns, 200 bytes each."""
_NUMBERS = (
    "arrival_s", "ttft_s", *STAGES, "prompt_tokens", "uncached_tokens", "bytes", "descriptors", "batch_tokens",
    "batch_requests",
)  # fmt: skip
_TEXTS = ("prefill_node", "decode_node", "direction")
_NAN = float("nan")
_numbers, _texts, _stages = attrgetter(*_NUMBERS), attrgetter(*_TEXTS), attrgetter(*STAGES)


class RecordWindow:
    """The newest records; `columns` gives those that can enter an attribution, by arrival."""

    def __init__(self, most_rows: int = MOST_ROWS, most_shown: int = MOST_SHOWN) -> None:
        self.requests: deque[TransferRecord] = deque(maxlen=most_shown)
        self.transfers: deque[HandleTransfer] = deque(maxlen=most_shown)
        self.windows: deque[WindowRecord] = deque(maxlen=most_shown)
        self._most_rows = most_rows
        self._numbers = {name: array("d") for name in _NUMBERS}
        self._codes = {name: array("i") for name in _TEXTS}
        self._names: dict[str, dict[str, int]] = {name: {} for name in _TEXTS}
        self._next = 0
        self._lock = threading.Lock()

    def add_requests(self, records: Sequence[TransferRecord]) -> None:
        """Keep requests; those without a TTFT, or with stages that exceed it, are shown but enter no columns."""
        with self._lock:
            self.requests.extend(records)
            for record in records:
                if _additive(record):
                    self._put(record)

    def add_pieces(self, pieces: Sequence[Piece]) -> None:
        """Keep transfers and windows, to be shown."""
        with self._lock:
            self.transfers.extend(one for one in pieces if isinstance(one, HandleTransfer))
            self.windows.extend(one for one in pieces if isinstance(one, WindowRecord))

    def shown(self) -> tuple[list[TransferRecord], list[HandleTransfer], list[WindowRecord]]:
        """Return what is kept of each kind, the oldest first."""
        with self._lock:
            return list(self.requests), list(self.transfers), list(self.windows)

    def columns(
        self, since_s: float, most_rows: int = MOST_ROWS, until_s: float = math.inf
    ) -> tuple[RequestColumns, int] | None:
        """Return the requests that arrived since then and by `until_s`, at most about `most_rows` of them evenly over
        time, and how many there are in all; None where there are none.
        """
        with self._lock:
            arrival_s = np.array(self._numbers["arrival_s"])
            order = np.argsort(arrival_s, kind="stable")
            first, end = np.searchsorted(arrival_s[order], since_s), np.searchsorted(arrival_s[order], until_s, "right")
            order = order[first:end]
            if order.size == 0:
                return None
            rows = order[drawn(order.size, most_rows)]
            # Views of growing arrays: gone before the lock is, for an array that is looked at cannot grow.
            numbers = {name: np.frombuffer(values)[rows] for name, values in self._numbers.items()}
            codes = {name: np.frombuffer(values, dtype=np.int32)[rows] for name, values in self._codes.items()}
            names = {name: tuple(known) for name, known in self._names.items()}
        found = RequestColumns(
            ids=[str(row) for row in rows.tolist()],
            numbers={name: values for name, values in numbers.items() if not np.isnan(values).all()},
            labels={name: Labels(names[name], values) for name, values in codes.items() if names[name]},
        )
        return found, int(order.size)

    def _put(self, record: TransferRecord) -> None:
        at = self._next
        grown = at < len(self._numbers["arrival_s"])
        for column, value in zip(self._numbers.values(), _numbers(record), strict=True):
            number = _NAN if value is None else value
            if grown:
                column[at] = number
            else:
                column.append(number)
        for (name, codes), text in zip(self._codes.items(), _texts(record), strict=True):
            known = self._names[name]
            code = -1 if text is None else known.setdefault(text, len(known)) if len(known) < self._most_rows else -1
            if at < len(codes):
                codes[at] = code
            else:
                codes.append(code)
        self._next = (at + 1) % self._most_rows


def _additive(record: TransferRecord) -> bool:
    """Return whether the row is one that a trace bundle may hold."""
    if record.ttft_s is None or not 0 <= record.ttft_s < 1e6 or not 0 <= record.arrival_s < 1e11:
        return False
    stages = [value for value in _stages(record) if value is not None]
    if stages and not 0 <= min(stages) <= max(stages) < 1e6:
        return False
    return math.fsum(stages) <= record.ttft_s * (1 + OVERLAP_SLACK) + CLOCK_SLACK_S
