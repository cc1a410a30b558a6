"""Receives for messages with immediate data: posted before a pass, reaped and compared after it."""

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from kvdiag_probes.datapath import lane_slots

_POLL_BATCH = 64
_YIELD_S = 200e-6


class Receiver:
    """The receive side of an end's queue pairs; nothing runs here while a pass does."""

    def __init__(self, completions: Any, queue_pairs: Sequence[Any], address: int, lkey: int) -> None:
        self._address = address
        self._lkey = lkey
        self._completions = completions
        self._queue_pairs = queue_pairs

    def post(self, count: int, chain: int) -> None:
        """Post a receive for each of `count` messages, on the queue pair that each comes in on."""
        from pyverbs.wr import SGE, RecvWR

        for queue_pair, slots in zip(self._queue_pairs, lane_slots(count, chain, len(self._queue_pairs)), strict=True):
            # A WRITE with immediate data puts nothing into the receive's own buffer; pyverbs insists on one.
            scatter = SGE(self._address, 1, self._lkey)
            request = RecvWR(num_sge=1, sg=[scatter])
            for _ in slots:
                queue_pair.post_recv(request)
            request.close()
            scatter.close()

    def reap(self, count: int, chain: int, timeout_s: float) -> str | None:
        """Return what is wrong with the immediates of a pass, each the number of its message, or None."""
        found: dict[int, list[int]] = defaultdict(list)
        reaped = 0
        deadline_s = time.monotonic() + timeout_s
        while reaped < count:
            number, completions = self._completions.poll(_POLL_BATCH)
            for completion in completions:
                if completion.status:
                    return f"receive {reaped} of {count} failed with status {completion.status}"
                found[completion.qp_num].append(completion.imm_data)
            reaped += number
            if not number:
                if time.monotonic() > deadline_s:
                    return f"{count - reaped} of {count} immediates did not arrive"
                time.sleep(_YIELD_S)
        dealt = lane_slots(count, chain, len(self._queue_pairs))
        for queue_pair, slots in zip(self._queue_pairs, dealt, strict=True):
            if found[queue_pair.qp_num] != slots:
                return f"queue pair {queue_pair.qp_num}: immediates out of order or wrong"
        return None
