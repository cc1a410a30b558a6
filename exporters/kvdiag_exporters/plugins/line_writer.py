"""Hands objects over to a thread that writes them as lines; the caller never waits and never sees an error."""

import atexit
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)
MOST_QUEUED = 10_000
"""Steps of an engine: several seconds of the fastest."""
MOST_BYTES = 64 << 20
"""Then the file becomes FILE.1, in place of an older one."""
RETRY_S = 5.0
BATCH = 500


class LineWriter:
    """Appends what `encode` makes of each object, whole lines at a time, so that several processes may share a file;
    an object of which it makes nothing gives no line.

    `dropped` counts objects that found the queue full, `lost` those that could not be encoded or written.
    """

    def __init__(self, path: Path, encode: Callable[[Any], bytes], most_bytes: int = MOST_BYTES) -> None:
        self.path = path
        self.dropped = 0
        self.lost = 0
        self._encode, self._most_bytes = encode, most_bytes
        self._queue: queue.Queue[Any] = queue.Queue(MOST_QUEUED)
        self._file: int | None = None
        self._not_before_s = 0.0
        self._complained = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = 0

    def put(self, item: Any) -> None:
        """Hand an object over; with a full queue it is counted as dropped."""
        if self._pid != os.getpid():
            self._start()
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            self.dropped += 1

    def close(self, timeout_s: float = 1.0) -> None:
        """Write what is queued, within the time limit."""
        self._stop.set()
        if self._thread is not None and self._pid == os.getpid():
            self._thread.join(timeout_s)

    def _start(self) -> None:
        # At the first object of each process: a thread does not live on in a forked child.
        self._pid = os.getpid()
        self._queue = queue.Queue(MOST_QUEUED)
        self._thread = threading.Thread(target=self._run, name="kvdiag-writer", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def _run(self) -> None:
        while not (self._stop.is_set() and self._queue.empty()):
            try:
                batch = [self._queue.get(timeout=0.2)]
            except queue.Empty:
                continue
            while len(batch) < BATCH:
                try:
                    batch.append(self._queue.get_nowait())
                except queue.Empty:
                    break
            self._write(batch)

    def _write(self, batch: list[Any]) -> None:
        lines = []
        for item in batch:
            try:
                line = self._encode(item)
                if line:
                    lines.append(line + b"\n")
            except Exception:  # an engine of another version may give what cannot be understood
                self.lost += 1
                self._complain("a step's statistics could not be understood")
        if not lines:
            return
        try:
            file = self._opened()
            if file is None:
                self.lost += len(lines)
                return
            data = b"".join(lines)
            size = os.fstat(file).st_size
            written = os.write(file, data)
            if written < len(data):
                os.ftruncate(file, size)
                raise OSError(28, "No space left on device")
        except OSError as error:
            self.lost += len(lines)
            self._shut()
            self._not_before_s = time.monotonic() + RETRY_S
            self._complain(f"{self.path}: {error.strerror}")

    def _opened(self) -> int | None:
        if self._file is not None and not self._in_place(self._file):
            self._shut()
        if self._file is not None and os.fstat(self._file).st_size >= self._most_bytes:
            self.path.replace(self.path.with_name(self.path.name + ".1"))
            self._shut()
        if self._file is None and time.monotonic() >= self._not_before_s:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        return self._file

    def _in_place(self, file: int) -> bool:
        """Return whether the path still leads to this file: another process may have put it aside."""
        try:
            there = self.path.stat()
        except OSError:
            return False
        here = os.fstat(file)
        return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)

    def _shut(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _complain(self, text: str) -> None:
        if not self._complained:
            self._complained = True
            _log.warning("kvdiag: %s; records are lost, the engine is not disturbed", text)
