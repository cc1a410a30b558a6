"""What happened when: slices, instants and counters on named tracks, for a timeline viewer."""

from dataclasses import dataclass, field

Argument = str | int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Something that took a while, on a track of a process (or of a node, an engine, a pair); seconds."""

    process: str
    track: str
    name: str
    category: str
    start_s: float
    duration_s: float
    arguments: dict[str, Argument] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """Something that happened at one moment."""

    process: str
    track: str
    name: str
    category: str
    at_s: float
    arguments: dict[str, Argument] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterSample:
    """A value at one moment; samples of one name in one process make a curve."""

    process: str
    name: str
    at_s: float
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """All times are seconds of one clock, whose origin does not matter; `about` says what was recorded."""

    slices: tuple[Slice, ...] = ()
    instants: tuple[Instant, ...] = ()
    counters: tuple[CounterSample, ...] = ()
    about: dict[str, str] = field(default_factory=dict)
