"""The process that holds a NIXL agent, from the side of its parent."""

import multiprocessing
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.reduction import send_handle
from typing import Any

from kvdiag.errors import UnavailableError, UndeterminedError
from kvdiag.model.missing import Missing
from kvdiag_probes.demo import nixl_import
from kvdiag_probes.kv import nixl_worker

_START_S = 120.0
SPARE_S = 30.0
"""Longest wait for the answer to a call that moves nothing."""


class NixlChild:
    """Starts the process; `ready` waits for it. `fd` is the memory to share with it, else it has its own.

    UndeterminedError where NIXL is not installed.
    """

    def __init__(self, name: str, size: int, *, loopback: bool, fd: int | None = None) -> None:
        package = nixl_import.find()
        if isinstance(package, Missing):
            raise UndeterminedError(f"{package.missing}, or use --transport tcp")
        context = multiprocessing.get_context("spawn")
        self._name = name
        self._near, far = context.Pipe()
        arguments = (far, name, size, loopback, fd is not None)
        self._process = context.Process(target=nixl_worker.main, args=arguments, daemon=True)
        with _deaf():
            self._process.start()
        far.close()
        if fd is not None:
            assert self._process.pid is not None
            send_handle(self._near, fd, self._process.pid)

    def ready(self) -> None:
        """Wait until the agent is there; UndeterminedError where NIXL does not load."""
        self._answer(_START_S)

    def call(self, method: str, *arguments: Any, limit_s: float = SPARE_S) -> Any:
        """Return what a method of the worker returns; UnavailableError where it fails or takes longer."""
        try:
            self._near.send((method, arguments))
        except OSError as error:
            raise UnavailableError(f"the NIXL {self._name} process is gone ({error.strerror})") from error
        return self._answer(limit_s)

    def close(self) -> None:
        """End the process."""
        self._near.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _answer(self, limit_s: float) -> Any:
        try:
            if not self._near.poll(limit_s):
                raise UnavailableError(f"the NIXL {self._name} process does not answer within {limit_s:g} s")
            failed, value = self._near.recv()
        except (EOFError, ConnectionError) as error:
            raise UnavailableError(f"the NIXL {self._name} process ended unexpectedly; see standard error") from error
        if failed:
            kind = UndeterminedError if failed == "UndeterminedError" else UnavailableError
            raise kind(str(value))
        return value


@contextmanager
def _deaf() -> Iterator[None]:
    """Start a process that leaves Ctrl-C to this one, which ends it: an ignored signal is inherited."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
