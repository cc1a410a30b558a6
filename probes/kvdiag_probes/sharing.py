"""Ways of reaching many peers with few queue pairs, and whether a device has them: each is tried, not looked up.

- srq: one shared receive queue for all queue pairs (ibv_create_srq(3)).
- xrc: extended reliable connections: one send queue pair per remote node (ibv_open_xrcd(3)).
- dc: NVIDIA's dynamically connected transport: one initiator for all targets (mlx5dv_create_qp(3)).
"""

import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import Any, NoReturn

from kvdiag.derive.intervals import metric
from kvdiag.errors import UndeterminedError
from kvdiag.model.probe_connections import SharingKind, SharingRow
from kvdiag_probes.ib_pairs import PairRefusedError

Maker = Callable[[], Any]
"""Makes one object that has `close`."""
Opener = Callable[[str], AbstractContextManager[Maker]]
"""Opens a device by name and yields what makes the objects of one kind on it."""
_NOT_OFFERED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPROTONOSUPPORT, errno.ENODEV)
_DEPTH = 16


def probe_sharing(device: str, rounds: int, openers: Mapping[SharingKind, Opener]) -> tuple[SharingRow, ...]:
    """Make and free one object of each kind, `rounds` times; what is not offered, or cannot be tried, says why."""
    return tuple(_row(kind, device, rounds, opener) for kind, opener in openers.items())


def _row(kind: SharingKind, device: str, rounds: int, opener: Opener) -> SharingRow:
    seconds = []
    try:
        with opener(device) as make:
            for _ in range(rounds):
                started_s = time.perf_counter()
                made = make()
                seconds.append(time.perf_counter() - started_s)
                made.close()
    except UndeterminedError as error:
        return SharingRow(kind=kind, status="not_observable", create=None, reason=str(error))
    except PairRefusedError as error:
        offered = error.code not in _NOT_OFFERED
        status = "refused" if offered else "not_offered"
        return SharingRow(kind=kind, status=status, create=None, reason=str(error))  # type: ignore[arg-type]
    return SharingRow(
        kind=kind, status="offered", create=metric(f"sharing.{kind}", "seconds", "lower", seconds), reason=None
    )


@contextmanager
def open_srq(device: str) -> Iterator[Maker]:
    """Yield what makes shared receive queues; PairRefusedError where the device refuses."""
    with _opened(device) as (_, _, domain, _), _refusals("ibv_create_srq"):
        from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr

        yield lambda: SRQ(domain, SrqInitAttr(SrqAttr(max_wr=_DEPTH)))


@contextmanager
def open_xrc(device: str) -> Iterator[Maker]:
    """Yield what makes send queue pairs of an XRC domain; PairRefusedError where the device refuses."""
    with _opened(device) as (e, context, domain, queue), _refusals("ibv_open_xrcd"):
        from pyverbs.qp import QP, QPCap, QPInitAttrEx
        from pyverbs.xrcd import XRCD, XRCDInitAttr

        mask = e.IBV_XRCD_INIT_ATTR_FD | e.IBV_XRCD_INIT_ATTR_OFLAGS
        with closing(XRCD(context, XRCDInitAttr(mask, os.O_CREAT, -1))), _refusals("ibv_create_qp_ex"):

            def make() -> Any:
                cap = QPCap(max_send_wr=_DEPTH, max_recv_wr=0, max_recv_sge=0)
                kind, valid = e.IBV_QPT_XRC_SEND, e.IBV_QP_INIT_ATTR_PD
                return QP(context, QPInitAttrEx(qp_type=kind, scq=queue, cap=cap, pd=domain, comp_mask=valid))

            yield make


@contextmanager
def open_dc(device: str) -> Iterator[Maker]:
    """Yield what makes initiators of the dynamically connected transport; PairRefusedError where refused."""
    try:
        from kvdiag_probes._pyverbs import make_importable

        make_importable()
        import pyverbs.providers.mlx5.mlx5_enums as dve
        from pyverbs.providers.mlx5.mlx5dv import (
            Mlx5Context,
            Mlx5DVContextAttr,
            Mlx5DVDCInitAttr,
            Mlx5DVQPInitAttr,
            Mlx5QP,
        )
    except ImportError as error:
        raise UndeterminedError(f"pyverbs here has no mlx5 part ({error})") from error
    with _refusals("mlx5dv_open_device"), ExitStack() as stack:
        context = stack.enter_context(closing(Mlx5Context(Mlx5DVContextAttr(), device)))
        e, _, domain, queue = stack.enter_context(_on(context))
        from pyverbs.qp import QPCap, QPInitAttrEx

        def make() -> Any:
            with _refusals("mlx5dv_create_qp"):
                cap = QPCap(max_send_wr=_DEPTH, max_recv_wr=0, max_recv_sge=0)
                valid = e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
                operations = e.IBV_QP_EX_WITH_RDMA_WRITE
                initial = QPInitAttrEx(
                    qp_type=e.IBV_QPT_DRIVER,
                    scq=queue,
                    rcq=queue,
                    cap=cap,
                    pd=domain,
                    comp_mask=valid,
                    send_ops_flags=operations,
                )
                own = Mlx5DVQPInitAttr(
                    comp_mask=dve.MLX5DV_QP_INIT_ATTR_MASK_DC, dc_init_attr=Mlx5DVDCInitAttr(dve.MLX5DV_DCTYPE_DCI)
                )
                return Mlx5QP(context, initial, own)

        yield make


def _not_of(driver: str) -> Opener:
    def refuse(device: str) -> NoReturn:
        raise PairRefusedError(f"only mlx5_core has it, {device} is driven by {driver}", errno.EOPNOTSUPP)

    return refuse


def openers(driver: str) -> dict[SharingKind, Opener]:
    """Return how each kind is opened on a device of a kernel driver."""
    return {"srq": open_srq, "xrc": open_xrc, "dc": open_dc if driver == "mlx5_core" else _not_of(driver)}


@contextmanager
def _opened(device: str) -> Iterator[tuple[Any, Any, Any, Any]]:
    from kvdiag_probes._pyverbs import make_importable

    make_importable()
    from pyverbs.device import Context

    with _refusals("ibv_open_device"), closing(Context(name=device)) as context, _on(context) as made:
        yield made


@contextmanager
def _on(context: Any) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Yield the enums, the device, a protection domain and a completion queue."""
    import pyverbs.enums as e
    from pyverbs.cq import CQ
    from pyverbs.pd import PD

    with closing(PD(context)) as domain, closing(CQ(context, _DEPTH)) as queue:
        yield e, context, domain, queue


@contextmanager
def _refusals(call: str) -> Iterator[None]:
    """Turn pyverbs' errors into PairRefusedError, which names the innermost call."""
    from pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError

    try:
        yield
    except PyverbsRDMAError as error:
        if error.error_code > 0:
            raise PairRefusedError(call, error.error_code) from error
        raise UndeterminedError(f"{call}: {error}") from error
    except PyverbsError as error:
        raise UndeterminedError(f"{call}: {error}") from error
