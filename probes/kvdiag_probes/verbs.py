"""One end of a transfer over verbs: RC queue pairs and a registered buffer."""

import errno
import importlib
import ipaddress
import resource
import secrets
import time
from dataclasses import dataclass
from typing import Any, Self

from kvdiag.errors import KvdiagError, UnavailableError, UndeterminedError, UsageError
from kvdiag_probes._pyverbs import make_importable
from kvdiag_probes.compiled_turns import loop_for
from kvdiag_probes.completion_queue import CompletionQueue
from kvdiag_probes.control.messages import Grant, QueuePairAddress, QueuePairNumber
from kvdiag_probes.datapath import Plan
from kvdiag_probes.gid import Choice
from kvdiag_probes.memory import MemoryKind, Region, allocate
from kvdiag_probes.posting import ChainedPass, Lane
from kvdiag_probes.receiving import Receiver
from kvdiag_probes.registration_limits import available_memory

TIMEOUT_EXPONENT = 14
"""Local ACK timeout: 4.096 µs × 2^14 = 67 ms (InfiniBand specification, section 9.7.6.1.3)."""
RETRIES = 6
"""Never 7 with rxe: Linux 6.1's rdma_rxe then retries for ever. 14 and 6 fail a dead path in about 0.5 s."""
_MTU_BYTES = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
_SPARE_CQES = 16
_ENTRY_BYTES = 128
"""Of each message that may be outstanding, at least: a work queue entry (mlx5: 64 bytes or more) and a completion."""


def preload() -> None:
    """Import pyverbs, which takes longer than any connection; UndeterminedError where it is not installed."""
    make_importable()
    for module in ("addr", "cq", "device", "enums", "mr", "pd", "qp", "wr"):
        importlib.import_module(f"pyverbs.{module}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointOptions:
    """What an end has beside one queue pair with host memory.

    `receives` is how many messages with immediate data each queue pair can take; `grant` what the peer may do with
    the buffer; `relaxed_ordering` lets the adapter's accesses to it overtake each other on PCIe.
    """

    queue_pairs: int = 1
    inline_bytes: int = 0
    receives: int = 0
    memory: MemoryKind = MemoryKind.HOST
    relaxed_ordering: bool = False
    grant: Grant = "all"


class Endpoint:
    """One end: device context, protection domain, completion queues, RC queue pairs, one registered buffer.

    `close` frees them in the reverse order; nothing is left to the garbage collector. `allocate_s` and `register_s`
    are the seconds that the buffer and its registration took.
    """

    def __init__(
        self, choice: Choice, size: int, queue_depth: int, options: EndpointOptions = EndpointOptions()
    ) -> None:
        preload()
        from pyverbs.pyverbs_error import PyverbsError

        self.choice = choice
        self.options = options
        self.register_s = 0.0
        self.allocate_s = 0.0
        self._resources: list[Any] = []
        self._region: Region | None = None
        self._pyverbs_error = PyverbsError
        try:
            self._open(size, queue_depth)
        except PyverbsError as error:
            made = len(getattr(self, "queue_pairs", ()))
            self.close()
            raise _resource_error(error, choice, size, made, options) from error
        except BaseException:
            self.close()
            raise

    def _open(self, size: int, queue_depth: int) -> None:
        from pyverbs.cq import CQ
        from pyverbs.device import Context
        from pyverbs.pd import PD

        options = self.options
        context = self._keep(Context(name=self.choice.device))
        port = context.query_port(self.choice.port)
        limits = context.query_device()
        _check_limits(self.choice, limits, queue_depth, options)
        domain = self._keep(PD(context))
        entries = (queue_depth + 1) * options.queue_pairs + _SPARE_CQES
        self.cq = self._keep(CompletionQueue(context, min(limits.max_cqe, entries)))
        self._receive_cq = self.cq.verbs
        if options.receives:
            self._receive_cq = self._keep(CQ(context, options.receives * options.queue_pairs + _SPARE_CQES))
        self._allocate(domain, size)
        self.queue_pairs: list[Any] = []
        for _ in range(options.queue_pairs):
            self.queue_pairs.append(self._queue_pair(domain, queue_depth))
        self.qp = self.queue_pairs[0]
        self.receiver = Receiver(self._receive_cq, self.queue_pairs, self._base, self.mr.lkey)
        psns = [secrets.randbits(24) for _ in self.queue_pairs]
        self.address = QueuePairAddress(
            qpn=self.qp.qp_num,
            psn=psns[0],
            gid=self.choice.gid,
            lid=port.lid,
            mtu=_MTU_BYTES[port.active_mtu],
            rd_atomic=max(1, min(limits.max_qp_rd_atom, 255)),
            rkey=self.mr.rkey,
            address_text=str(self._base),
            more=tuple(
                QueuePairNumber(qpn=pair.qp_num, psn=psn)
                for pair, psn in zip(self.queue_pairs[1:], psns[1:], strict=True)
            ),
        )
        self._initiator_depth = max(1, min(limits.max_qp_init_rd_atom, 255))

    def _allocate(self, domain: Any, size: int) -> None:
        started_s = time.perf_counter()
        self._region = allocate(self.options.memory, size, self.choice.device)
        self.allocate_s = time.perf_counter() - started_s
        access = access_flags(self.options.grant, relaxed_ordering=self.options.relaxed_ordering)
        started_s = time.perf_counter()
        mr, self._base = self._region.register(domain, access)
        self.mr = self._keep(mr)
        self.register_s = time.perf_counter() - started_s

    def _queue_pair(self, domain: Any, queue_depth: int) -> Any:
        import pyverbs.enums as e
        from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr

        capabilities = QPCap(
            max_send_wr=queue_depth + 1,  # and a flag
            max_recv_wr=max(1, self.options.receives),
            max_send_sge=1,
            max_recv_sge=1,
            max_inline_data=self.options.inline_bytes,
        )
        initial = QPInitAttr(
            qp_type=e.IBV_QPT_RC, scq=self.cq.verbs, rcq=self._receive_cq, cap=capabilities, sq_sig_all=0
        )
        pair = self._keep(QP(domain, initial))
        attributes = QPAttr(port_num=self.choice.port)
        attributes.qp_access_flags = access_flags("all")
        pair.to_init(attributes)
        return pair

    def connect(self, remote: QueuePairAddress) -> None:
        """Take every queue pair to RTS towards its remote one; the path MTU is the smaller of both ends'.

        UnavailableError where the remote GID or the path MTU is refused.
        """
        if len(remote.more) != len(self.address.more):
            raise UnavailableError(f"the peer made {1 + len(remote.more)} queue pairs for {1 + len(self.address.more)}")
        self.path_mtu = min(self.address.mtu, remote.mtu)
        ours = ((self.address.qpn, self.address.psn), *((pair.qpn, pair.psn) for pair in self.address.more))
        theirs = ((remote.qpn, remote.psn), *((pair.qpn, pair.psn) for pair in remote.more))
        for queue_pair, (_, psn), (remote_qpn, remote_psn) in zip(self.queue_pairs, ours, theirs, strict=True):
            self._to_rts(queue_pair, psn, remote, remote_qpn, remote_psn)

    def _to_rts(self, queue_pair: Any, psn: int, remote: QueuePairAddress, remote_qpn: int, remote_psn: int) -> None:
        from pyverbs.addr import GID, AHAttr, GlobalRoute
        from pyverbs.qp import QPAttr

        attributes = QPAttr(port_num=self.choice.port)
        attributes.path_mtu = next(code for code, size in _MTU_BYTES.items() if size == self.path_mtu)
        attributes.dest_qp_num = remote_qpn
        attributes.rq_psn = remote_psn
        attributes.sq_psn = psn
        attributes.max_dest_rd_atomic = self.address.rd_atomic
        attributes.max_rd_atomic = min(self._initiator_depth, remote.rd_atomic)
        attributes.min_rnr_timer = 12
        attributes.timeout = TIMEOUT_EXPONENT
        attributes.retry_cnt = RETRIES
        attributes.rnr_retry = 6
        route = GlobalRoute(dgid=GID(_long(remote.gid)), sgid_index=self.choice.gid_index, hop_limit=64)
        attributes.ah_attr = AHAttr(port_num=self.choice.port, is_global=1, gr=route, dlid=remote.lid)
        try:
            queue_pair.to_rts(attributes)
        except self._pyverbs_error as error:
            raise UnavailableError(
                f"{self.choice.name}: no route to the peer's GID {remote.gid} ({_reason(error)}); check that both GIDs "
                "are in connected networks and of one type (--gid-index), and that the peer answers a ping"
            ) from error

    @property
    def region(self) -> Region:
        """The registered memory."""
        assert self._region is not None
        return self._region

    @property
    def buffer(self) -> memoryview:
        """The host's view of the registered memory."""
        return self.region.view

    def lanes(self, remote: QueuePairAddress) -> list[Lane]:
        """Return a lane for every queue pair, between this buffer and the remote one."""
        return [
            Lane(
                queue_pair=queue_pair,
                completions=self.cq,
                local=self._base,
                lkey=self.mr.lkey,
                remote=remote.address,
                rkey=remote.rkey,
            )
            for queue_pair in self.queue_pairs
        ]

    def prepare(self, plan: Plan, remote: QueuePairAddress, peer: str) -> ChainedPass:
        """Build every work request of a pass once."""
        return ChainedPass([self.lanes(remote)], plan, peer)

    def states(self) -> list[str]:
        """Return the state of each queue pair: RTS while all is well, ERR after a failure."""
        import pyverbs.enums as e

        names = ("RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR")
        return [names[pair.query(e.IBV_QP_STATE)[0].qp_state] for pair in self.queue_pairs]

    @property
    def timestamps(self) -> str:
        """Say whether the adapter's own stamps end the latencies."""
        return str(self.cq.timestamps)

    @property
    def latency_loop(self) -> str:
        """Say what runs passes of one message at a time, and why where that is the interpreter."""
        return loop_for(self.qp, self.cq)

    def close(self) -> None:
        """Destroy queue pairs, registration, completion queues, domain and context, in this order."""
        while self._resources:
            self._resources.pop().close()
        if self._region is not None:
            self._region.close()
            self._region = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _keep(self, made: Any) -> Any:
        self._resources.append(made)
        return made


def _long(gid: str) -> str:
    return ipaddress.IPv6Address(gid).exploded


def _reason(error: Exception) -> str:
    return str(error).rpartition(", ")[2]


def access_flags(grant: Grant, *, relaxed_ordering: bool = False) -> int:
    """Return the ibv_access_flags that let a peer do what is granted: a remote write needs the local one."""
    import pyverbs.enums as e

    flags = int(e.IBV_ACCESS_LOCAL_WRITE)
    if grant in ("all", "write"):
        flags |= e.IBV_ACCESS_REMOTE_WRITE
    if grant in ("all", "read"):
        flags |= e.IBV_ACCESS_REMOTE_READ
    return flags | (e.IBV_ACCESS_RELAXED_ORDERING if relaxed_ordering else 0)


def _check_limits(choice: Choice, limits: Any, queue_depth: int, options: EndpointOptions) -> None:
    for flag, asked, most in (
        ("--queue-depth", queue_depth, limits.max_qp_wr - 1),
        ("--qps", options.queue_pairs, limits.max_qp),
        ("messages of a pass with immediate data", options.receives, limits.max_qp_wr),
    ):
        if asked > most:
            raise UsageError(f"{flag}: {choice.device} allows at most {most}, not {asked}")
    needed, free = options.queue_pairs * (queue_depth + 1) * _ENTRY_BYTES, available_memory()
    if needed > free // 2:
        raise UsageError(
            f"--qps {options.queue_pairs} with --queue-depth {queue_depth}: their queues need at least "
            f"{needed / (1 << 20):.0f} MiB, this host has {free / (1 << 20):.0f} MiB of memory left; lower one of them"
        )


def _resource_error(error: Exception, choice: Choice, size: int, made: int, options: EndpointOptions) -> KvdiagError:
    code = getattr(error, "error_code", None)
    if not made and options.inline_bytes and "create QP" in str(error):
        return UndeterminedError(
            f"--inline: {choice.device} makes no queue pair with {options.inline_bytes} bytes inline "
            f"({_reason(error)}); none says its most before: lower it (rdma_rxe takes 512, many adapters 220 to 1024) "
            "or leave it out"
        )
    if made:
        return UndeterminedError(
            f"{choice.device}: only {made} of {options.queue_pairs} queue pairs could be made ({_reason(error)}): see "
            "`rdma resource show` for who holds the others and rdma.max of this cgroup, or lower --qps"
        )
    if code == errno.ENOMEM:
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        if soft != resource.RLIM_INFINITY:
            return UndeterminedError(
                f"{choice.device}: cannot register {size} bytes of memory: the memlock limit is {soft} bytes; raise it "
                "(ulimit -l unlimited, systemd LimitMEMLOCK=infinity, container --ulimit memlock=-1) or lower --size"
            )
    if code in (errno.EPERM, errno.EACCES):
        return UndeterminedError(
            f"{choice.device}: no permission ({_reason(error)}): open /dev/infiniband/uverbs* to this user"
        )
    return UndeterminedError(f"{choice.device}: cannot set up a queue pair with {size} bytes registered: {error}")
