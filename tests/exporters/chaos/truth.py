"""What is true of a source at each moment: the factor its counters stand at, and whether it is in trouble."""

import threading
import time
from collections import defaultdict


class Factor:
    """A whole number by which all counters of a source are multiplied; `between` gives the least and the greatest of
    those that a reader can have seen.
    """

    def __init__(self) -> None:
        self.now = 1
        self._values: list[tuple[float, int]] = [(float("-inf"), 1)]
        self._written: list[float] = [float("-inf")]
        self._lock = threading.Lock()

    def begin(self, value: int) -> None:
        """From now on a reader may see the new value, and until `end` still the old one."""
        with self._lock:
            self.now = value
            self._values.append((time.monotonic(), value))
            self._written.append(float("inf"))

    def end(self) -> None:
        """From now on a reader sees the new value only."""
        with self._lock:
            self._written[-1] = time.monotonic()

    def between(self, start_s: float, end_s: float) -> tuple[int, int]:
        with self._lock:
            found = []
            for place, (from_s, value) in enumerate(self._values):
                until_s = self._written[place + 1] if place + 1 < len(self._values) else float("inf")
                if from_s <= end_s and until_s >= start_s:
                    found.append(value)
        return min(found), max(found)


class Troubles:
    """When which group of series was in trouble; a group in trouble may be missing, never wrong."""

    def __init__(self) -> None:
        self._times: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        self._lock = threading.Lock()

    def begin(self, group: str) -> int:
        with self._lock:
            self._times[group].append((time.monotonic(), float("inf")))
            return len(self._times[group]) - 1

    def end(self, group: str, number: int, settle_s: float = 0.0) -> None:
        with self._lock:
            start_s, _ = self._times[group][number]
            self._times[group][number] = (start_s, time.monotonic() + settle_s)

    def any(self, group: str, start_s: float, end_s: float) -> bool:
        """Return whether the group was in trouble at any time in between."""
        with self._lock:
            return any(begun_s <= end_s and over_s >= start_s for begun_s, over_s in self._times[group])
