"""Lines about clients that misbehave: the first of a kind at once, the rest counted, so that a flood stays readable."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kvdiag_probes.control.address import Address

_MOST_CLIENTS = 1000


@dataclass(slots=True)
class _Window:
    since_s: float
    count: int = 0
    hosts: set[str] = field(default_factory=set)
    last: str = ""


class Tally:
    """`emit` gets each line. Of one kind, at most one line comes with its client and then one count every `every_s`."""

    def __init__(
        self, emit: Callable[[str], None], every_s: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._emit, self._every_s, self._clock = emit, every_s, clock
        self._windows: dict[str, _Window] = {}

    def note(self, client: tuple[str, int] | None, what: str) -> None:
        """Note that a client (address and port, None where it is not known) did something."""
        name = "a client" if client is None else str(Address(*client[:2]))
        window = self._windows.get(what)
        if window is None:
            self._windows[what] = _Window(self._clock())
            self._emit(f"{name}: {what}")
            return
        window.count += 1
        window.last = name
        if client is not None and len(window.hosts) < _MOST_CLIENTS:
            window.hosts.add(client[0])

    def flush(self, *, everything: bool = False) -> None:
        """Emit the counts of what is old enough, or of everything; call it now and then."""
        now_s = self._clock()
        for what, window in list(self._windows.items()):
            if not everything and now_s - window.since_s < self._every_s:
                continue
            del self._windows[what]
            if window.count:
                hosts = f" from {len(window.hosts)} hosts" if len(window.hosts) > 1 else ""
                seconds = max(1, round(now_s - window.since_s))
                self._emit(f"{window.count} more within {seconds} s{hosts}, the last {window.last}: {what}")
                if not everything:
                    # Still going on: the next line is a count again, not another first.
                    self._windows[what] = _Window(now_s)
