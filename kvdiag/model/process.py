"""One process as /proc shows it."""

from dataclasses import dataclass
from typing import Literal

from kvdiag.model.missing import Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Seconds, bytes and counts; `memlock_limit_bytes` is the soft limit.

    `start_ticks` (clock ticks after boot) with `pid` names a process for good: a pid is reused, the pair is not.
    `cpu_s` is its own time, `reaped_cpu_s` that of the children it has waited for.
    """

    pid: int
    parent_pid: int
    name: str
    start_ticks: int
    start_s: float | Missing
    cpu_s: float
    reaped_cpu_s: float
    threads: int
    rss_bytes: int | Missing
    pinned_bytes: int | Missing
    locked_bytes: int | Missing
    open_fds: int | Missing
    memlock_limit_bytes: int | Literal["unlimited"] | Missing
