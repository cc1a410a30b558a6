"""Records what a probe does when, for `--trace`; without a recorder every call here does next to nothing."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from kvdiag.model.trace import Argument, CounterSample, Slice, Trace
from kvdiag_probes.datapath import DataPath, Pass, Plan, PreparedPass

STAGES, ROUNDS, OPERATIONS = "stages", "rounds", "operations"
"""The tracks of a probe's timeline."""
THROUGHPUT = "bytes per second"
"""The counter of what is moved or registered."""
_MOST_SLICES = 50_000
_MOST_OF_A_PASS = 64
"""Timed operations of one pass that are kept: enough to see how they overlap."""


class Recorder:
    """Keeps slices and samples of counters, each up to a bound, and counts those beyond it.

    Times are of time.perf_counter.
    """

    def __init__(self, most: int = _MOST_SLICES) -> None:
        self._most = most
        self._slices: list[Slice] = []
        self._samples: list[CounterSample] = []
        self.dropped = 0

    def add(self, track: str, name: str, start_s: float, duration_s: float, **arguments: Argument) -> None:
        """Record what took `duration_s` seconds from `start_s` on."""
        if len(self._slices) >= self._most:
            self.dropped += 1
            return
        self._slices.append(
            Slice(
                process="probe",
                track=track,
                name=name,
                category=track,
                start_s=start_s,
                duration_s=duration_s,
                arguments=arguments,
            )
        )

    def count(self, name: str, at_s: float, value: float) -> None:
        """Record a counter's value at one moment."""
        if len(self._samples) >= self._most:
            self.dropped += 1
            return
        self._samples.append(CounterSample(process="probe", name=name, at_s=at_s, value=value))

    def rate(self, name: str, start_s: float, duration_s: float, amount: float) -> None:
        """Record a counter that stood at amount / duration_s for as long, and at zero afterwards."""
        if duration_s > 0:
            self.count(name, start_s, amount / duration_s)
            self.count(name, start_s + duration_s, 0.0)

    def trace(self, **about: str) -> Trace:
        """Return everything recorded so far."""
        kept = {"dropped_slices": str(self.dropped)}
        return Trace(slices=tuple(self._slices), counters=tuple(self._samples), about=about | kept)


_current: ContextVar[Recorder | None] = ContextVar("recorder", default=None)


def current() -> Recorder | None:
    """Return the recorder in force here, or None."""
    return _current.get()


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Record what this thread does in the block."""
    token = _current.set(recorder)
    try:
        yield
    finally:
        _current.reset(token)


def add(track: str, name: str, start_s: float, duration_s: float, **arguments: Argument) -> None:
    """Record what took so long from `start_s` on (time.perf_counter), where something is recorded."""
    recorder = _current.get()
    if recorder is not None:
        recorder.add(track, name, start_s, duration_s, **arguments)


def rate(name: str, start_s: float, duration_s: float, amount: float) -> None:
    """Record that something went on at amount / duration_s for so long, where something is recorded."""
    recorder = _current.get()
    if recorder is not None:
        recorder.rate(name, start_s, duration_s, amount)


def growth(name: str, since_s: float, by: float) -> None:
    """Record that a counter grew from 0 at `since_s` to `by` now, where something is recorded."""
    recorder = _current.get()
    if recorder is not None:
        recorder.count(name, since_s, 0.0)
        recorder.count(name, time.perf_counter(), by)


@contextmanager
def span(track: str, name: str, **arguments: Argument) -> Iterator[None]:
    """Record the block as one slice; one that fails says with which error."""
    recorder = _current.get()
    if recorder is None:
        yield
        return
    started_s = time.perf_counter()
    try:
        yield
    except BaseException as error:
        arguments["failed"] = f"{type(error).__name__}: {error}"[:200]
        raise
    finally:
        recorder.add(track, name, started_s, time.perf_counter() - started_s, **arguments)


def traced(path: DataPath) -> DataPath:
    """Return a path whose passes are recorded, or the path itself where nothing is."""
    recorder = _current.get()
    return path if recorder is None else _TracedPath(path, recorder)


class _TracedPath:
    def __init__(self, path: DataPath, recorder: Recorder) -> None:
        self._path, self._recorder = path, recorder
        self.push, self.pull, self.close = path.push, path.pull, path.close

    @property
    def buffer(self) -> memoryview:
        return self._path.buffer

    def prepare(self, plan: Plan) -> PreparedPass:
        prepared = self._path.prepare(plan)
        kind = _TracedExchange if hasattr(prepared, "exchange") else _TracedPass
        return kind(prepared, plan, self._recorder)


class _TracedPass:
    def __init__(self, prepared: Any, plan: Plan, recorder: Recorder) -> None:
        self._prepared, self._plan, self._recorder = prepared, plan, recorder
        self.close = prepared.close

    def run(self) -> Pass:
        started_s = time.perf_counter()
        done: Pass = self._prepared.run()
        self._record(done, started_s)
        return done

    def _record(self, done: Pass, started_s: float) -> None:
        plan, latencies = self._plan, done.latencies_s
        name = f"{plan.operation.verb} {plan.slots} × {plan.size} bytes"
        self._recorder.add(ROUNDS, name, started_s, done.elapsed_s, messages=plan.slots, bytes=plan.bytes)
        self._recorder.rate(THROUGHPUT, started_s, done.elapsed_s, plan.bytes)
        starts = done.posted_s or ([started_s] if plan.queue_depth == 1 else [])
        for number, seconds in enumerate(latencies[:_MOST_OF_A_PASS]):
            if number >= len(starts):
                break
            self._recorder.add(OPERATIONS, plan.operation.verb, starts[number], seconds, bytes=plan.size)


class _TracedExchange(_TracedPass):
    def exchange(self, buffer: memoryview, awaited: Any, *, serves: bool) -> Pass:
        started_s = time.perf_counter()
        done: Pass = self._prepared.exchange(buffer, awaited, serves=serves)
        self._record(done, started_s)
        return done
