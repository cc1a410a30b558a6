"""Where the time of a run goes: at any moment exactly one stage is charged, so that the stages add up to the whole."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvdiag.model.probe import StageTime
from kvdiag_probes import tracing

REST = "other"


class Stages:
    """Seconds by stage, in the order in which the stages were first entered; what belongs to none is in "other"."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or time.perf_counter
        self._seconds: dict[str, float] = {}
        self._open = [REST]
        self._since_s = self._started_s = self._clock()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Charge what is done inside to a stage; a stage inside another's takes its time from that one."""
        self._charge()
        self._open.append(name)
        self._seconds.setdefault(name, 0.0)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def move(self, source: str, target: str, seconds: float) -> None:
        """Charge another stage for what was measured inside one, at most as much as that one was charged."""
        self._charge()
        moved = min(max(seconds, 0.0), self._seconds.get(source, 0.0))
        self._seconds[target] = self._seconds.get(target, 0.0) + moved
        self._seconds[source] = self._seconds.get(source, 0.0) - moved

    def times(self) -> tuple[StageTime, ...]:
        """Return every stage so far, "other" last."""
        self._charge()
        rest_s = self._seconds.get(REST, 0.0)
        named = [StageTime(stage=name, seconds=seconds) for name, seconds in self._seconds.items() if name != REST]
        return (*named, StageTime(stage=REST, seconds=rest_s))

    @property
    def total_s(self) -> float:
        """Seconds from the beginning to the last time that was charged."""
        return self._since_s - self._started_s

    def _charge(self) -> None:
        now_s = self._clock()
        name = self._open[-1]
        tracing.add(tracing.STAGES, name, self._since_s, now_s - self._since_s)
        self._seconds[name] = self._seconds.get(name, 0.0) + now_s - self._since_s
        self._since_s = now_s
