"""What a pass does while nothing comes, and how one that fails is told."""

import os
import time
from collections.abc import Sequence

from kvdiag.errors import KvdiagError, UnavailableError
from kvdiag_probes.completion import completion_error, leading
from kvdiag_probes.completion_queue import CompletionQueue
from kvdiag_probes.datapath import Plan

_SLEEP_S = 20e-6
"""Long beside a call, short beside what callers have queued when they ask for it."""
_FLUSHED_WITH_IT = 16


class Watch:
    """One pass's patience, of the plan's timeout, and the words for its failures."""

    def __init__(self, plan: Plan, peer: str, queues: Sequence[CompletionQueue]) -> None:
        self._plan = plan
        self._peer = peer
        self._queues = queues

    def idle(self, since_s: float, *, sleep: bool = False) -> None:
        """Offer the processor to others; UnavailableError where nothing has come for too long."""
        self.check(since_s)
        if sleep:
            time.sleep(_SLEEP_S)
        else:
            os.sched_yield()

    def check(self, since_s: float) -> None:
        """UnavailableError where nothing has come since then, of time.perf_counter, for longer than the timeout."""
        if time.perf_counter() - since_s > self._plan.timeout_s:
            raise UnavailableError(
                f"{self._peer}: RDMA {self._plan.operation.verb}: no completion within {self._plan.timeout_s:g} s "
                "(--timeout); check that the peer is alive and the link carries packets"
            )

    def failed(self, status: int) -> KvdiagError:
        """Return the error of a failed completion, or of one that came with it where this was only flushed."""
        found = [(status, next((queue.vendor_err for queue in self._queues if queue.vendor_err), 0))]
        for queue in self._queues:
            found += [(one.status, one.vendor_err) for one in queue.poll(_FLUSHED_WITH_IT)[1]]
        first = leading(one for one, _ in found) or status
        return completion_error(f"RDMA {self._plan.operation.verb}", self._peer, first, vendor=dict(found[::-1])[first])

    def refused(self, what: str, code: int) -> KvdiagError:
        """Return the error of a call of the provider's that did not take what it was given."""
        return UnavailableError(
            f"{self._peer}: RDMA {self._plan.operation.verb}: the provider refused {what} ({os.strerror(code)}); see "
            "`rdma resource show qp` for the queue pair's state"
        )
