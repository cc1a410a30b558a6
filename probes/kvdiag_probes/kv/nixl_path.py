"""KV blocks through real NIXL: two agents in two processes of this host, UCX over TCP on loopback."""

import contextlib
import multiprocessing
from collections.abc import Iterator
from typing import Any

import numpy as np

from kvdiag.errors import UnavailableError, UndeterminedError
from kvdiag.model.missing import Missing
from kvdiag_probes.datapath import Operation
from kvdiag_probes.demo import nixl_import
from kvdiag_probes.kv import nixl_worker
from kvdiag_probes.kv.path import Groups, Timing

_START_S = 120.0
_SPARE_S = 30.0


class _Child:
    def __init__(self, name: str, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._near, far = context.Pipe()
        self._process = context.Process(target=nixl_worker.main, args=(far, name, size), daemon=True)
        self._process.start()
        far.close()
        self._name = name

    def ready(self) -> None:
        self._answer(_START_S)

    def call(self, method: str, *arguments: Any, limit_s: float = _SPARE_S) -> Any:
        try:
            self._near.send((method, arguments))
        except OSError as error:
            raise UnavailableError(f"the NIXL {self._name} process is gone ({error.strerror})") from error
        return self._answer(limit_s)

    def close(self) -> None:
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


class NixlKvPath:
    """Two agents, connected."""

    def __init__(self, near: _Child, far: _Child) -> None:
        self._near, self._far = near, far

    def transfer(self, operation: Operation, groups: Groups, timeout_s: float, repeats: int) -> Timing:
        writing = operation is Operation.WRITE
        rows = [
            np.array([(b.source, b.target, b.length) if writing else (b.target, b.source, b.length) for b in group])
            .reshape(-1, 3)
            .astype(np.uint64)
            for group in groups
        ]
        self._far.call("serve", True)
        try:
            limit_s = repeats * timeout_s + _SPARE_S
            timing: Timing = self._near.call("transfer", str(operation), rows, timeout_s, repeats, limit_s=limit_s)
        finally:
            self._far.call("serve", False)
        return timing

    def fill(self, seed: int, size: int, *, far: bool) -> None:
        (self._far if far else self._near).call("fill", seed, size)

    def digest(self, size: int, *, far: bool) -> str:
        return str((self._far if far else self._near).call("digest", size))


@contextlib.contextmanager
def open_nixl(local_bytes: int, remote_bytes: int) -> Iterator[NixlKvPath]:
    """Start both agents; UndeterminedError where NIXL is not installed or does not load."""
    package = nixl_import.find()
    if isinstance(package, Missing):
        raise UndeterminedError(f"{package.missing}, or use --transport tcp")
    with contextlib.ExitStack() as stack:
        children = [_Child("initiator", local_bytes), _Child("target", remote_bytes)]
        for child in children:
            stack.callback(child.close)
        for child in children:
            child.ready()
        near, far = children
        far.call("connect", *near.call("endpoint"))
        near.call("connect", *far.call("endpoint"))
        yield NixlKvPath(near, far)
