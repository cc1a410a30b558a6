"""RC queue pairs for one-sided operations; the only place that imports pyverbs."""

import ctypes
import gc
import importlib
import resource
import secrets
import time
from collections import deque
from typing import Any, Self

from kvdiag.errors import KvdiagError, UnavailableError, UndeterminedError, UsageError
from kvdiag_probes._pyverbs import make_importable
from kvdiag_probes.completion import completion_error, leading
from kvdiag_probes.control.messages import QueuePairAddress
from kvdiag_probes.datapath import Memory, Operation, Pass, Plan, chain_lengths
from kvdiag_probes.gid import Choice

TIMEOUT_EXPONENT = 14
"""Local ACK timeout: 4.096 µs × 2^14 = 67 ms (InfiniBand specification, section 9.7.6.1.3)."""
RETRIES = 6
"""Never 7 with rxe: Linux 6.1's rdma_rxe then retries for ever. 14 and 6 fail a dead path in about 0.5 s."""
_MTU_BYTES = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
_SPARE_CQES = 16
_EMPTY_POLLS_BEFORE_YIELD = 64
_YIELD_S = 20e-6


def preload() -> None:
    """Import pyverbs, which takes longer than any connection; UndeterminedError where it is not installed."""
    make_importable()
    for module in ("addr", "cq", "device", "enums", "mr", "pd", "qp", "wr"):
        importlib.import_module(f"pyverbs.{module}")


class Endpoint:
    """One end: device context, protection domain, completion queue, one RC queue pair, one registered buffer.

    `close` frees them in the reverse order; nothing is left to the garbage collector. `allocate_s` and `register_s`
    are the seconds that the buffer and its registration took.
    """

    def __init__(self, choice: Choice, size: int, queue_depth: int) -> None:
        preload()
        from pyverbs.pyverbs_error import PyverbsError

        self.choice = choice
        self.register_s = 0.0
        self.allocate_s = 0.0
        self._resources: list[Any] = []
        self._memory: Memory | None = None
        self._pyverbs_error = PyverbsError
        try:
            self._open(size, queue_depth)
        except PyverbsError as error:
            self.close()
            raise _resource_error(error, choice, size) from error
        except BaseException:
            self.close()
            raise

    def _open(self, size: int, queue_depth: int) -> None:
        import pyverbs.enums as e
        from pyverbs.cq import CQ
        from pyverbs.device import Context
        from pyverbs.mr import MR
        from pyverbs.pd import PD
        from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr

        context = self._keep(Context(name=self.choice.device))
        port = context.query_port(self.choice.port)
        limits = context.query_device()
        if queue_depth > limits.max_qp_wr:
            raise UsageError(
                f"--queue-depth: {self.choice.device} allows at most {limits.max_qp_wr}, not {queue_depth}"
            )
        domain = self._keep(PD(context))
        self.cq = self._keep(CQ(context, queue_depth + _SPARE_CQES))
        started_s = time.perf_counter()
        self._memory = Memory(size)
        self._memory.touch()
        self.allocate_s = time.perf_counter() - started_s
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory.view))
        access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
        started_s = time.perf_counter()
        self.mr = self._keep(MR(domain, size, access, address=address))
        self.register_s = time.perf_counter() - started_s
        capabilities = QPCap(max_send_wr=queue_depth, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
        self.qp = self._keep(
            QP(domain, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=capabilities, sq_sig_all=0))
        )
        attributes = QPAttr(port_num=self.choice.port)
        attributes.qp_access_flags = access
        self.qp.to_init(attributes)
        self.address = QueuePairAddress(
            qpn=self.qp.qp_num,
            psn=secrets.randbits(24),
            gid=self.choice.gid,
            lid=port.lid,
            mtu=_MTU_BYTES[port.active_mtu],
            rd_atomic=max(1, min(limits.max_qp_rd_atom, 255)),
            rkey=self.mr.rkey,
            address_text=str(address),
        )
        self._initiator_depth = max(1, min(limits.max_qp_init_rd_atom, 255))

    def connect(self, remote: QueuePairAddress) -> None:
        """Take the queue pair to RTS towards the remote one; the path MTU is the smaller of both ends'."""
        from pyverbs.addr import GID, AHAttr, GlobalRoute
        from pyverbs.qp import QPAttr

        mtu = min(self.address.mtu, remote.mtu)
        attributes = QPAttr(port_num=self.choice.port)
        attributes.path_mtu = next(code for code, size in _MTU_BYTES.items() if size == mtu)
        attributes.dest_qp_num = remote.qpn
        attributes.rq_psn = remote.psn
        attributes.sq_psn = self.address.psn
        attributes.max_dest_rd_atomic = self.address.rd_atomic
        attributes.max_rd_atomic = min(self._initiator_depth, remote.rd_atomic)
        attributes.min_rnr_timer = 12
        attributes.timeout = TIMEOUT_EXPONENT
        attributes.retry_cnt = RETRIES
        attributes.rnr_retry = 6
        route = GlobalRoute(dgid=GID(_long(remote.gid)), sgid_index=self.choice.gid_index, hop_limit=64)
        attributes.ah_attr = AHAttr(port_num=self.choice.port, is_global=1, gr=route, dlid=remote.lid)
        try:
            self.qp.to_rts(attributes)
        except self._pyverbs_error as error:
            raise UnavailableError(
                f"{self.choice.name}: no route to the peer's GID {remote.gid} ({_reason(error)}); check that both GIDs "
                "are in connected networks and of one type (--gid-index), and that the peer answers a ping"
            ) from error
        self.path_mtu = mtu

    @property
    def buffer(self) -> memoryview:
        """The registered memory."""
        assert self._memory is not None
        return self._memory.view

    def prepare(self, plan: Plan, remote: QueuePairAddress, peer: str) -> "ChainedPass":
        """Build every work request of a pass once."""
        return ChainedPass(self, plan, remote, peer)

    def close(self) -> None:
        """Destroy queue pair, registration, completion queue, domain and context, in this order."""
        while self._resources:
            self._resources.pop().close()
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _keep(self, made: Any) -> Any:
        self._resources.append(made)
        return made


class ChainedPass:
    """Work requests in pre-built chains: each chain is posted by one call, and its last request is signalled."""

    def __init__(self, endpoint: Endpoint, plan: Plan, remote: QueuePairAddress, peer: str) -> None:
        import pyverbs.enums as e
        from pyverbs.wr import SGE, SendWR

        self._endpoint = endpoint
        self._plan = plan
        self._peer = peer
        self._lengths = chain_lengths(plan.slots, plan.chain)
        # A work request's `next_wr` holds no reference, so every request is kept until `close`.
        self._requests: list[Any] = []
        self._heads: list[Any] = []
        opcode = e.IBV_WR_RDMA_WRITE if plan.operation == Operation.WRITE else e.IBV_WR_RDMA_READ
        slot = 0
        for chain, length in enumerate(self._lengths):
            previous = None
            for position in range(length):
                offset = slot * plan.size
                last = position == length - 1
                scatter = SGE(endpoint.address.address + offset, plan.size, endpoint.mr.lkey)
                request = SendWR(
                    wr_id=chain, opcode=opcode, num_sge=1, sg=[scatter], send_flags=e.IBV_SEND_SIGNALED if last else 0
                )
                request.set_wr_rdma(remote.rkey, remote.address + offset)
                self._requests += [scatter, request]
                if previous is None:
                    self._heads.append(request)
                else:
                    previous.next_wr = request
                previous = request
                slot += 1

    def run(self) -> Pass:
        collecting = gc.isenabled()
        gc.disable()
        try:
            return self._run()
        finally:
            if collecting:
                gc.enable()

    def _run(self) -> Pass:
        clock = time.perf_counter
        post, poll = self._endpoint.qp.post_send, self._endpoint.cq.poll
        heads, lengths, depth = self._heads, self._lengths, self._plan.queue_depth
        count, outstanding, posted, done, empty = len(heads), 0, 0, 0, 0
        posted_at: deque[float] = deque()
        latencies: list[float] = []
        started_s = clock()
        deadline_s = started_s + self._plan.timeout_s
        while done < count:
            while posted < count and outstanding + lengths[posted] <= depth:
                posted_at.append(clock())
                post(heads[posted])
                outstanding += lengths[posted]
                posted += 1
            found, completions = poll(16)
            if not found:
                empty += 1
                if empty >= _EMPTY_POLLS_BEFORE_YIELD:
                    if clock() > deadline_s:
                        raise self._late()
                    time.sleep(_YIELD_S)
                continue
            now_s = clock()
            empty = 0
            deadline_s = now_s + self._plan.timeout_s
            for completion in completions:
                if completion.status:
                    raise self._failed(completions)
                latencies.append(now_s - posted_at.popleft())
                outstanding -= lengths[done]
                done += 1
        return Pass(clock() - started_s, latencies)

    def close(self) -> None:
        """Free the work requests (pyverbs leaks them otherwise)."""
        for made in self._requests:
            made.close()
        self._requests.clear()
        self._heads.clear()

    def _failed(self, completions: list[Any]) -> KvdiagError:
        status = leading(completion.status for completion in completions)
        vendor = next((c.vendor_err for c in completions if c.status == status), 0)
        return completion_error(f"RDMA {self._plan.operation.upper()}", self._peer, status or 0, vendor=vendor)

    def _late(self) -> KvdiagError:
        return UnavailableError(
            f"{self._peer}: RDMA {self._plan.operation.upper()}: no completion within {self._plan.timeout_s:g} s "
            "(--timeout); check that the peer is alive and the link carries packets"
        )


def _long(gid: str) -> str:
    import ipaddress

    return ipaddress.IPv6Address(gid).exploded


def _reason(error: Exception) -> str:
    return str(error).rpartition(", ")[2]


def _resource_error(error: Exception, choice: Choice, size: int) -> KvdiagError:
    import errno

    code = getattr(error, "error_code", None)
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
