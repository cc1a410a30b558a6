"""Series for rule tests: how each behaves while things are bad, good and idle, and promtool's notation of it."""

from collections.abc import Sequence
from dataclasses import dataclass

TARGET = {"job": "kvdiag", "instance": "a:9846"}
STEP = "1m"
_BEFORE_RESET = 1e6


@dataclass(frozen=True)
class Counter:
    """What it grows by in a minute: nothing without traffic. Before a reset it stands at a million."""

    name: str
    labels: dict[str, str]
    bad: float
    good: float = 0.0

    def timeline(self, good: int, bad: int, gone: int) -> str:
        turned = self.good * good
        return f"{_run(0, self.good, good)} {_run(turned, self.bad, bad)} {_gone(gone)}"

    def numbers(self, good: int, bad: int) -> list[float]:
        first = [self.good * i for i in range(good)]
        return first + [self.good * good + self.bad * i for i in range(bad)]

    def reset(self, minutes: int) -> str:
        return f"{_run(_BEFORE_RESET, self.good, minutes)} {_run(0, self.good, minutes)}"

    def quiet(self, minutes: int) -> str:
        return _run(_BEFORE_RESET, 0, minutes)


@dataclass(frozen=True)
class Gauge:
    """Its value; without traffic it is as when things are good."""

    name: str
    labels: dict[str, str]
    bad: float
    good: float
    grows: float = 0.0

    def timeline(self, good: int, bad: int, gone: int) -> str:
        return f"{_run(self.good, 0, good)} {_run(self.bad, self.grows, bad)} {_gone(gone)}"

    def numbers(self, good: int, bad: int) -> list[float]:
        return [self.good] * good + [self.bad + self.grows * i for i in range(bad)]

    def reset(self, minutes: int) -> str:
        return _run(self.good, 0, 2 * minutes)

    def quiet(self, minutes: int) -> str:
        return _run(self.good, 0, minutes)


Series = Counter | Gauge


def counter(name: str, bad: float, good: float = 0.0, /, **labels: str) -> Counter:
    return Counter(name, TARGET | labels, bad, good)


def gauge(name: str, bad: float, good: float, grows: float = 0.0, /, **labels: str) -> Gauge:
    return Gauge(name, TARGET | labels, bad, good, grows)


def histogram(name: str, per_minute: float, bad_s: float, good_s: float, /, **labels: str) -> list[Counter]:
    """Return the counters of a histogram whose every value is `bad_s`, or `good_s`."""
    bounds = [10.0**power for power in range(-4, 3)]
    found = [
        counter(
            f"{name}_bucket",
            per_minute if bad_s <= bound else 0.0,
            per_minute if good_s <= bound else 0.0,
            le=f"{bound:g}",
            **labels,
        )
        for bound in bounds
    ]
    found.append(counter(f"{name}_bucket", per_minute, per_minute, le="+Inf", **labels))
    found.append(counter(f"{name}_count", per_minute, per_minute, **labels))
    found.append(counter(f"{name}_sum", per_minute * bad_s, per_minute * good_s, **labels))
    return found


def written(series: Series) -> str:
    labels = ",".join(f'{name}="{value}"' for name, value in sorted(series.labels.items()))
    return f"{series.name}{{{labels}}}"


def flat(*parts: Series | Sequence[Series]) -> list[Series]:
    found: list[Series] = []
    for part in parts:
        found += [part] if isinstance(part, Counter | Gauge) else list(part)
    return found


def _run(start: float, step: float, samples: int) -> str:
    """Return promtool's notation of `samples` values."""
    return f"{start:.15g}+{step:.15g}x{samples - 1}"


def _gone(minutes: int) -> str:
    return f"stale _x{minutes}"
