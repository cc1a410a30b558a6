"""Passes of one message at a time through latency_loops.c, where the installation has it compiled."""

import ctypes
import functools
import hashlib
import time
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from kvdiag_probes import queue_pair_pointer
from kvdiag_probes.completion_queue import CompletionQueue
from kvdiag_probes.datapath import Operation, Plan
from kvdiag_probes.ping_pong import Awaited
from kvdiag_probes.waiting import Watch

if TYPE_CHECKING:
    from kvdiag_probes.posting import Lane

SOURCE = Path(__file__).with_name("latency_loops.c")
LIBRARY = SOURCE.with_suffix(".so")
_DONE, _WAITING, _FAILED, _REFUSED = 0, 1, 2, 3
_POST = 1
# A round trip of an emulated machine ends before the first offer of the processor, of hardware long before.
_SPINS, _SPINS_MORE = 1 << 17, 64
_SLICE_NS = 20_000_000
"""How long a call may wait before Python sees signals and its timeout again."""
_SEND_SIGNALED, _SEND_INLINE = 2, 8


class _Turns(Structure):
    """struct turns of latency_loops.c."""

    _fields_: ClassVar = [
        *((name, c_uint64) for name in ("qp", "local", "remote")),
        *((name, c_void_p) for name in ("buffer", "offsets", "values", "began_ns", "ended_ns", "ticks")),
        ("slice_ns", c_uint64),
        *((name, c_uint32) for name in ("size", "lkey", "rkey", "opcode", "flags", "count", "spins", "spins_more")),
        *((name, c_uint32) for name in ("extended", "stamped")),
        *((name, c_uint32) for name in ("sent", "seen", "step", "untaken", "status", "vendor_err", "error")),
    ]


def loop_for(queue_pair: Any, completions: CompletionQueue) -> str:
    """Say what runs passes of one message at a time over this queue pair, and why where it is the interpreter."""
    library, why = _library()
    if library is None:
        return f"interpreted ({why})"
    if queue_pair_pointer.find(queue_pair, completions.verbs) is None:
        return "interpreted (pyverbs does not show its queue pair)"
    return "compiled"


class CompiledTurns:
    """Calls the loops of latency_loops.c over one lane."""

    def __init__(self, library: Any, address: int, lane: "Lane", plan: Plan, watch: Watch) -> None:
        self._library = library
        self._queue = lane.completions
        self._watch = watch
        # IBV_WR_RDMA_WRITE, _WRITE_WITH_IMM and _READ, and the send flags: <infiniband/verbs.h>.
        opcode = {Operation.WRITE: 0, Operation.WRITE_IMM: 1, Operation.READ: 4}[plan.operation]
        self._call = _Turns(
            qp=address,
            local=lane.local + plan.base,
            remote=lane.remote + plan.base,
            size=plan.size,
            lkey=lane.lkey,
            rkey=lane.rkey,
            opcode=opcode,
            flags=_SEND_SIGNALED | (_SEND_INLINE if plan.inline else 0),
            count=plan.slots,
            spins=_SPINS,
            spins_more=_SPINS_MORE,
            slice_ns=_SLICE_NS,
        )

    def one_by_one(self) -> tuple[list[float], list[Any]]:
        began, ended, ticks = (np.zeros(self._call.count, np.uint64) for _ in range(3))
        self._begin(began)
        self._call.ended_ns, self._call.ticks = ended.ctypes.data, ticks.ctypes.data
        self._run(self._library.kvdiag_turns_alone)
        stamps: list[Any] = _seconds(ended)
        if self._call.stamped:
            stamps = list(zip(stamps, ticks.tolist(), strict=True))
        return _seconds(began), stamps

    def exchange(self, buffer: memoryview, awaited: Sequence[Awaited], *, serves: bool) -> list[float]:
        memory: npt.NDArray[np.uint8] = np.frombuffer(buffer, dtype=np.uint8)
        offsets = np.array([one.at for one in awaited], np.uint64)
        values = np.array([one.value for one in awaited], np.uint8)
        began = np.zeros(self._call.count + 1, np.uint64)
        self._begin(began)
        self._call.buffer, self._call.offsets = memory.ctypes.data, offsets.ctypes.data
        self._call.values = values.ctypes.data
        self._call.step = _POST if serves else 0
        self._run(self._library.kvdiag_turns_exchange)
        return _seconds(began if serves else began[:-1])

    def _begin(self, began: npt.NDArray[np.uint64]) -> None:
        call = self._call
        call.began_ns = began.ctypes.data
        call.sent = call.seen = call.step = call.untaken = call.status = call.vendor_err = call.error = 0
        call.extended, call.stamped = self._queue.extended, self._queue.stamped

    def _run(self, loop: Any) -> None:
        call, progress = self._call, (-1, -1)
        since_s = time.perf_counter()
        while result := loop(byref(call)):
            if result == _WAITING:
                if progress != (progress := (call.sent, call.seen)):
                    since_s = time.perf_counter() - _SLICE_NS * 1e-9
                self._watch.check(since_s)
            elif result == _FAILED:
                self._queue.vendor_err = call.vendor_err
                raise self._watch.failed(call.status)
            else:
                raise self._watch.refused("a message" if result == _REFUSED else "a poll", call.error)


def compiled_turns(lane: "Lane", plan: Plan, watch: Watch) -> CompiledTurns | None:
    """Return the compiled loops over a lane, or None where `loop_for` says why there are none."""
    library, _ = _library()
    address = library and queue_pair_pointer.find(lane.queue_pair, lane.completions.verbs)
    return CompiledTurns(library, address, lane, plan, watch) if library and address else None


def _seconds(moments_ns: npt.NDArray[np.uint64]) -> list[float]:
    seconds: list[float] = (moments_ns * 1e-9).tolist()
    return seconds


@functools.cache
def _library() -> tuple[Any, str]:
    """Return the library, or None and why there is none: only what was made of the source beside it is called."""
    try:
        library = ctypes.CDLL(str(LIBRARY))
        library.kvdiag_turns_source.restype = c_char_p
        made_of = library.kvdiag_turns_source().decode()
    except (OSError, AttributeError):
        return None, "no compiled loop in this installation: see Compiled loop in docs/install.md"
    if made_of != hashlib.sha256(SOURCE.read_bytes()).hexdigest():
        return None, f"{LIBRARY.name} is of another version: install kvdiag again"
    for name in ("kvdiag_turns_alone", "kvdiag_turns_exchange"):
        getattr(library, name).argtypes, getattr(library, name).restype = [POINTER(_Turns)], c_int
    return library, ""
