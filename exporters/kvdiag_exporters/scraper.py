"""Runs all collectors for one instant, each in a thread of its own, so that one that fails or hangs hides no other."""

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvdiag.model.finding import Finding
from kvdiag.sources.base import Clock
from kvdiag_exporters.catalog import Sample
from kvdiag_exporters.collectors.base import Collector, Outcome
from kvdiag_exporters.derived.base import Derivation, finding_samples
from kvdiag_exporters.precedence import Precedence

_log = logging.getLogger(__name__)

TIMEOUT_S = 5.0
"""How long one collection waits for its collectors: half of Prometheus's default scrape timeout."""

HURRY_S = 0.3
"""How long one that is under way when all is to end still waits for them."""

LOOK_EVERY_S = 0.1

CLOSE_S = 8.0
"""How long the end waits for collectors to take back what they set: the kernel waits for its processors meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """All samples of one instant (`time_s` since the epoch, `monotonic_s` for ages) and how each collector fared.

    `findings` are what follows from them; what they show to be impossible is not among the samples.
    """

    time_s: float
    monotonic_s: float
    samples: tuple[Sample, ...]
    outcomes: Mapping[str, Outcome]
    findings: tuple[Finding, ...] = ()


class Scraper:
    """Collects on demand; callers within `max_age_s` of a collection, and callers during one, share it."""

    def __init__(
        self,
        collectors: Mapping[str, Collector],
        clock: Clock,
        max_age_s: float = 0.0,
        timeout_s: float = TIMEOUT_S,
        derivations: Mapping[str, Derivation] | None = None,
        precedence: Precedence | None = None,
    ) -> None:
        self.precedence = precedence or Precedence()
        self._workers = {name: _Worker(name, collector, clock) for name, collector in collectors.items()}
        self._derivations = {name: _Derived(name, one, clock) for name, one in (derivations or {}).items()}
        self._clock = clock
        self._max_age_s = max_age_s
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._last: Collection | None = None
        self._hurries = 0

    @property
    def parts(self) -> dict[str, object]:
        """The collectors and derivations by name."""
        collectors = {name: one.collector for name, one in self._workers.items()}
        return collectors | {f"derived {name}": one.derivation for name, one in self._derivations.items()}

    @property
    def last(self) -> Collection | None:
        """The last collection, whatever its age; None before the first."""
        return self._last

    def collect(self, *, fresh: bool = False, timeout_s: float | None = None) -> Collection:
        """Return a collection not older than the limit (`fresh`: a new one), within the time limit of the scraper."""
        asked_s = self._clock.monotonic_s()
        with self.precedence, self._lock:
            oldest_s = asked_s if fresh else asked_s - self._max_age_s
            if self._last is None or self._last.monotonic_s < oldest_s:
                self._last = self._collect(self._timeout_s if timeout_s is None else timeout_s)
            return self._last

    def hurry(self) -> None:
        """Let a collection that is under way go without what it still waits for; those that begin later wait again."""
        self._hurries += 1

    def close(self) -> None:
        """Let the collectors' threads end, each once its collection is over; nothing can be collected any more.

        Those that have something to take back are waited for, CLOSE_S at most.
        """
        for worker in self._workers.values():
            worker.close()
        deadline_s = self._clock.monotonic_s() + CLOSE_S
        for worker in self._workers.values():
            worker.wait_closed(max(0.0, deadline_s - self._clock.monotonic_s()))

    def _collect(self, timeout_s: float) -> Collection:
        time_s, start_s = self._clock.wall_s(), self._clock.monotonic_s()
        running = [worker for worker in self._workers.values() if worker.start()]
        hurries, patience_s = self._hurries, HURRY_S
        for worker in running:
            left_s = start_s + timeout_s - self._clock.monotonic_s()
            while not worker.finished.wait(max(0.0, min(LOOK_EVERY_S, left_s))) and min(left_s, patience_s) > 0:
                left_s -= LOOK_EVERY_S
                patience_s -= LOOK_EVERY_S if self._hurries > hurries else 0.0
        samples: list[Sample] = []
        for worker in self._workers.values():
            samples += worker.result(timeout_s)
        outcomes = {name: worker.outcome for name, worker in self._workers.items()}
        findings: list[Finding] = []
        for name, derivation in self._derivations.items():
            samples = derivation.run(samples, start_s, findings)
            outcomes[name] = derivation.outcome
        if self._derivations:
            samples += finding_samples(findings)
        return Collection(
            time_s=time_s, monotonic_s=start_s, samples=tuple(samples), outcomes=outcomes, findings=tuple(findings)
        )


class _Derived:
    """One derivation, timed, and kept from hiding anything where it fails."""

    def __init__(self, name: str, derivation: Derivation, clock: Clock) -> None:
        self.outcome = Outcome(duration_s=0.0, error="has not run yet")
        self.derivation = derivation
        self._name, self._clock = name, clock

    def run(self, samples: list[Sample], monotonic_s: float, findings: list[Finding]) -> list[Sample]:
        """Return the samples with what follows from them, without what cannot be; all of them where it fails."""
        start_s = self._clock.monotonic_s()
        error = ""
        try:
            found = self.derivation.derive(samples, monotonic_s)
            if found.dropped:
                samples = [one for one in samples if (one.metric.name, one.labels) not in found.dropped]
            samples = samples + found.samples
            findings += found.findings
        except Exception as failure:  # whatever it is: what was collected goes on
            error = f"{type(failure).__name__}: {failure}"
            if error != self.outcome.error:
                _log.warning("derivation %s failed: %s", self._name, error, exc_info=True)
        end_s = self._clock.monotonic_s()
        self.outcome = Outcome(duration_s=end_s - start_s, error=error, good_s=self.outcome.good_s if error else end_s)
        return samples


class _Worker:
    """One collector and its thread, which ends with the process and is never waited for without a limit."""

    def __init__(self, name: str, collector: Collector, clock: Clock) -> None:
        self.finished = threading.Event()
        self.outcome = Outcome(duration_s=0.0, error="has not run yet")
        self.collector = collector
        self._name, self._clock = name, clock
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._busy = False
        self._samples: list[Sample] = []
        self._take_back: Callable[[], None] | None = getattr(collector, "close", None)
        self._closed = threading.Event()
        threading.Thread(target=self._run, name=f"collect-{name}", daemon=True).start()

    def start(self) -> bool:
        """Begin a collection unless the last one is still running."""
        with self._lock:
            if self._busy:
                return False
            self._busy = True
            self.finished.clear()
        self._asked.put(True)
        return True

    def close(self) -> None:
        self._asked.put(False)

    def wait_closed(self, timeout_s: float) -> None:
        """Wait until the collector has taken back what it set, where it has something to."""
        if self._take_back is not None and not self._closed.wait(timeout_s):
            _log.warning("collector %s: did not end within %g s", self._name, CLOSE_S)

    def result(self, timeout_s: float) -> list[Sample]:
        """Return the samples of a finished collection; none, and the outcome says so, of one that still runs."""
        with self._lock:
            if self.finished.is_set():
                return self._samples
            self.outcome = Outcome(
                duration_s=timeout_s, error=f"still running after {timeout_s:g} s", good_s=self.outcome.good_s
            )
            return []

    def _run(self) -> None:
        while self._asked.get():
            start_s = self._clock.monotonic_s()
            error, samples = "", []
            try:
                samples = list(self.collector.collect())
            except Exception as failure:  # whatever it is: the other collectors go on
                error = f"{type(failure).__name__}: {failure}"
                if error != self.outcome.error:
                    _log.warning("collector %s failed: %s", self._name, error, exc_info=True)
            end_s = self._clock.monotonic_s()
            with self._lock:
                self.outcome = Outcome(
                    duration_s=end_s - start_s,
                    error=error,
                    missing=self.collector.missing,
                    good_s=self.outcome.good_s if error else end_s,
                )
                self._samples = [] if error else samples
                self._busy = False
                self.finished.set()
        if self._take_back is not None:
            try:
                self._take_back()
            except Exception:
                _log.warning("collector %s could not take back what it set", self._name, exc_info=True)
        self._closed.set()
