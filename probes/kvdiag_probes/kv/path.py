"""What a transport must do to move KV blocks for the probe, and how its time is split."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvdiag.errors import UnavailableError
from kvdiag.model.kv_geometry import Block
from kvdiag.model.probe import TransportProof
from kvdiag_probes.datapath import Operation

Groups = Sequence[Sequence[Block]]
"""Descriptor lists that are posted one after another, and waited for together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one transfer: making the transport's requests from descriptors, the calls that post them, the calls
    that ask for completion, and the rest of the wait.
    """

    build_s: float
    post_s: float
    wire_s: float
    poll_s: float

    @property
    def total_s(self) -> float:
        """All four."""
        return self.build_s + self.post_s + self.wire_s + self.poll_s


class KvPath(Protocol):
    """An initiator's and a target's memory, and transfers between them.

    For WRITE a block's `source` is an offset here and `target` one at the far end; for READ the other way round.
    """

    def transfer(self, operation: Operation, groups: Groups, timeout_s: float, repeats: int) -> Timing:
        """Build the requests once and move every group `repeats` times; return the fastest time.

        UnavailableError when one fails or takes longer than `timeout_s` seconds.
        """
        ...

    def fill(self, seed: int, size: int, *, far: bool) -> None:
        """Write the pattern of a seed over the first `size` bytes of one end's memory."""
        ...

    def digest(self, size: int, *, far: bool) -> str:
        """Return the digest of the first `size` bytes of one end's memory."""
        ...

    def prove(self, moved: Mapping[Operation, int]) -> TransportProof:
        """Say whether the kernel's counts agree that the transport moved so many bytes since the path was opened."""
        ...


def await_all(states: Sequence[Callable[[], bool]], timeout_s: float, peer: str) -> tuple[float, float]:
    """Ask each transfer until it is done; return the seconds inside the calls, and those between them.

    UnavailableError past `timeout_s` seconds.
    """
    clock = time.perf_counter
    waiting = list(states)
    started_s = clock()
    asked_s = 0.0
    while True:
        before_s = clock()
        waiting = [done for done in waiting if not done()]
        after_s = clock()
        asked_s += after_s - before_s
        if not waiting:
            return asked_s, after_s - started_s - asked_s
        if after_s - started_s > timeout_s:
            raise UnavailableError(
                f"{peer}: {len(waiting)} transfers unfinished after {timeout_s:g} s (--timeout); is the peer alive?"
            )
