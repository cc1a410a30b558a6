"""Scrapes first: work that can wait stands back while one is being answered.

Threads of one interpreter share it. Every file that a collector reads costs it a wait for whoever computes at that
moment, up to 5 ms each by default, so that beside the joining of records a scrape took half a second.
"""

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

LONGEST_S = 0.1
"""How long work stands back at most, so that endless scrapes do not stop it."""


SWITCH_S = 0.0005
"""How long a thread that computes keeps others from going on (sys.setswitchinterval)."""
THRESHOLDS = (5000, 20, 1000)
"""Of the garbage collector: with 20,000 requests that are waited for, a look at all objects takes 0.17 s, during which
nothing else runs. They hold no cycles, so it is seldom needed."""
TIDY_EVERY_S = 300.0
"""How often it is done all the same, for what lived long and then died in a cycle."""


@contextmanager
def short_waits() -> Iterator[None]:
    """Keep this process's threads from holding each other up, while the block runs."""
    switch_s, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(SWITCH_S)
    gc.set_threshold(*THRESHOLDS)
    gc.freeze()
    over = threading.Event()
    threading.Thread(target=_tidy, args=(over,), name="tidy", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(switch_s)


def _tidy(over: threading.Event) -> None:
    while not over.wait(TIDY_EVERY_S):
        gc.collect()


class Precedence:
    """Entered by who answers a scrape; others call `give_way` between pieces of work of a few milliseconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._free = threading.Event()
        self._free.set()

    def __enter__(self) -> None:
        with self._lock:
            self._count += 1
            self._free.clear()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._count -= 1
            if not self._count:
                self._free.set()

    def give_way(self) -> None:
        """Wait while a scrape is being answered, LONGEST_S at most."""
        self._free.wait(LONGEST_S)
