"""How long the kernel takes to register memory and to set up queue pairs, per engine: only where it is asked for.

Off by default, as it is the one collector that changes something on the host: it sets kprobes while it runs.
"""

import re
from collections.abc import Iterator

from kvdiag.errors import UndeterminedError
from kvdiag.model.missing import Missing
from kvdiag_exporters.catalog import Metric, Recorded, Sample
from kvdiag_exporters.collectors.base import Setup
from kvdiag_exporters.going_on import Gone
from kvdiag_exporters.kernel_calls.probe import FULL
from kvdiag_exporters.kernel_calls.session import Session
from kvdiag_exporters.kernel_calls.totals import Totals
from kvdiag_exporters.kernel_calls.tracefs import TraceFiles, find
from kvdiag_exporters.owners import OTHER, Owners

AGAIN_S = 60.0
"""Where tracing is not possible it is tried again this often: a module may come, a file system be mounted."""

_HOST_PROCESSES = "pid:[4026531836]"
"""The first process namespace, in which the kernel tells thread ids (PROC_PID_INIT_INO in include/linux/proc_ns.h)."""
_TGID = re.compile(r"^Tgid:\s+(\d+)$", re.MULTILINE)
_REGISTER = ("call", ("reg_mr", "reg_dmabuf_mr"))
_OWNED = ("node", "engine", "call")

SECONDS = Metric(
    name="kvdiag_rdma_call_seconds",
    kind="histogram",
    unit="seconds",
    labels=_OWNED,
    help="Time in the kernel of calls that worked: reg_mr, dereg_mr, pin, create_qp, modify_qp_rtr and others.",
    recorded=(
        Recorded(name="reg.mr_register_us", unit="us", scale=1e6, part="sum", where=(_REGISTER,)),
        Recorded(name="reg.mr_registered", unit="count", part="count", where=(_REGISTER,)),
    ),
)
FAILURES = Metric(
    name="kvdiag_rdma_call_failures_total",
    kind="counter",
    labels=(*_OWNED, "error"),
    help="Calls that failed in the kernel, by error: ENOMEM for too low a memlock limit, EFAULT for no such memory.",
)
PINNED = Metric(
    name="kvdiag_rdma_pinned_bytes_total",
    kind="counter",
    unit="bytes",
    labels=("node", "engine"),
    help="Bytes pinned by calls of kind pin: for memory regions, with some drivers for queues as well.",
)
UNMEASURED = Metric(
    name="kvdiag_rdma_calls_unmeasured_total",
    kind="counter",
    labels=("node", "call"),
    help="Calls seen to return that were not measured: under way at the start, a full histogram, too many at once.",
)
TIMED = Metric(
    name="kvdiag_rdma_call_timed",
    kind="gauge",
    labels=("node", "call"),
    help="1 while calls of this kind are timed; modify_qp stands for all states.",
)

METRICS = (SECONDS, FAILURES, PINNED, UNMEASURED, TIMED)


class KernelCallsCollector:
    def __init__(self, setup: Setup, files: TraceFiles | None = None) -> None:
        self._setup = setup
        self._files = files
        self._session: Session | None = None
        self._tried_s = float("-inf")
        self._reason = ""
        self._totals = Totals()
        self._threads: dict[int, str] = {}
        self.missing: tuple[str, ...] = ()

    def go_on(self, before: "KernelCallsCollector", gone: Gone) -> None:
        """Begin with what was counted before a reload; the histograms in the kernel are new ones."""
        self._totals, self._threads = before._totals.without(gone.engines), before._threads

    def collect(self) -> Iterator[Sample]:
        """Yield everything counted since the start; what cannot be timed is in `missing`, with the reason."""
        self._arm()
        missing = [] if self._session is None else [*self._session.missing, *self._read(self._session)]
        if self._session is None:
            missing.append(f"calls in the kernel cannot be timed: {self._reason}")
        self.missing = tuple(missing)
        yield from self._samples()

    def close(self) -> None:
        """Remove what was set in the kernel."""
        self._end("it has ended")

    def _arm(self) -> None:
        now_s = self._setup.clock.monotonic_s()
        if self._session is not None or now_s - self._tried_s < AGAIN_S:
            return
        self._tried_s = now_s
        try:
            session = Session(self._files or find(self._setup.tree), self._setup.tree)
            session.arm()
        except UndeterminedError as error:
            self._reason = str(error)
            return
        self._session = session
        # A rate needs the zero before the first call; states of queue pairs come as they are seen.
        for engine in self._setup.engines:
            for call in session.timed:
                if engine.pid is not None and call != "modify_qp":
                    self._totals.begin(engine.name, call)

    def _read(self, session: Session) -> Iterator[str]:
        threads = _Threads(self._setup, self._threads)
        if threads.reason:
            yield threads.reason
        try:
            for reading in session.read():
                self._totals.add(reading, threads.engine)
                if len(reading.worked.entries) + len(reading.failed.entries) >= FULL:
                    session.empty(reading.function)
                    self._totals.emptied(reading.function)
        except UndeterminedError as error:
            self._end(str(error))

    def _end(self, reason: str) -> None:
        session, self._session, self._reason = self._session, None, reason
        if session is not None:
            self._totals.ended()
            session.disarm()

    def _samples(self) -> Iterator[Sample]:
        node, totals = self._setup.node, self._totals
        if self._session is not None:
            yield from (TIMED.sample(1.0, node, call) for call in self._session.timed)
        yield from (SECONDS.sample(buckets, node, *key) for key, buckets in totals.durations().items())
        yield from (FAILURES.sample(float(count), node, *key) for key, count in totals.failures.items())
        yield from (PINNED.sample(float(count), node, engine) for engine, count in totals.pinned_bytes.items())
        yield from (UNMEASURED.sample(float(count), node, call) for call, count in totals.unmeasured().items())


class _Threads:
    """Which engine a thread of the host is of, in one reading; `known` keeps it for when the thread has ended.

    Of a thread that came and went between two readings nobody can tell any more whose it was.
    """

    def __init__(self, setup: Setup, known: dict[int, str]) -> None:
        self._tree, self._owners, self._known = setup.tree, Owners(setup), known
        self._looked: set[int] = set()
        namespace = setup.tree.link("/proc/1/ns/pid")
        self.reason = ""
        if setup.engines and namespace != _HOST_PROCESSES:
            seen = namespace.missing if isinstance(namespace, Missing) else f"this one is {namespace}"
            self.reason = (
                "calls in the kernel are given to no engine: their threads have ids of the host's process namespace "
                f"({seen}); with hostPID, or the host's /proc below root, they are"
            )

    def engine(self, thread: int) -> str:
        if self.reason:
            return OTHER
        if thread not in self._looked:
            self._looked.add(thread)
            status = self._tree.read(f"/proc/{thread}/status")
            match = None if isinstance(status, Missing) else _TGID.search(status)
            if match is not None:
                self._known[thread] = self._owners.engine(int(match[1]))
        return self._known.get(thread, OTHER)


def create(setup: Setup) -> KernelCallsCollector | None:
    return KernelCallsCollector(setup) if setup.kernel_timing else None
