"""RC queue pairs through libibverbs itself, so that threads make them side by side (see libibverbs.py)."""

import ctypes
import ipaddress
import os
from ctypes import POINTER, Structure, byref, c_int, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any, ClassVar

from kvdiag_probes.libibverbs import LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE, Domain

_RC, _RESET_TO_INIT, _INIT_TO_RTR, _RTR_TO_RTS = 2, 1, 2, 3
# Masks of enum ibv_qp_attr_mask for the three transitions of an RC queue pair (ibv_modify_qp(3)).
_MASK_INIT = 1 << 0 | 1 << 3 | 1 << 4 | 1 << 5
_MASK_RTR = 1 << 0 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20
_MASK_RTS = 1 << 0 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16
_MTU_1024 = 3


class _Cap(Structure):
    _fields_: ClassVar = [(name, c_uint32) for name in ("send_wr", "recv_wr", "send_sge", "recv_sge", "inline_data")]


class _InitAttributes(Structure):
    _fields_: ClassVar = [
        ("context", c_void_p),
        ("send_cq", c_void_p),
        ("recv_cq", c_void_p),
        ("srq", c_void_p),
        ("cap", _Cap),
        ("qp_type", c_int),
        ("sq_sig_all", c_int),
    ]


class _Route(Structure):
    _fields_: ClassVar = [
        ("dgid", c_uint64 * 2),
        ("flow_label", c_uint32),
        ("sgid_index", c_uint8),
        ("hop_limit", c_uint8),
        ("traffic_class", c_uint8),
    ]


class _AddressHandle(Structure):
    _fields_: ClassVar = [
        ("route", _Route),
        ("dlid", c_uint16),
        *((name, c_uint8) for name in ("sl", "src_path_bits", "static_rate", "is_global", "port")),
    ]


class _Attributes(Structure):
    _fields_: ClassVar = [
        *((name, c_int) for name in ("state", "current", "path_mtu", "migration")),
        *((name, c_uint32) for name in ("qkey", "rq_psn", "sq_psn", "destination")),
        ("access", c_int),
        ("cap", _Cap),
        ("address", _AddressHandle),
        ("alternate", _AddressHandle),
        ("pkey_index", c_uint16),
        ("alt_pkey_index", c_uint16),
        *(
            (name, c_uint8)
            for name in (
                *("notify", "draining", "max_rd_atomic", "max_dest_rd_atomic", "min_rnr_timer", "port"),
                *("timeout", "retries", "rnr_retries", "alt_port", "alt_timeout"),
            )
        ),
        ("rate_limit", c_uint32),
    ]


class _Pair(Structure):
    """The public head of struct ibv_qp."""

    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("context", "qp_context", "pd", "send_cq", "recv_cq", "srq")),
        ("handle", c_uint32),
        ("number", c_uint32),
    ]


class _SharedAttributes(Structure):
    _fields_: ClassVar = [("context", c_void_p), *((name, c_uint32) for name in ("max_wr", "max_sge", "limit"))]


class PairRefusedError(Exception):
    """`code` is the errno of a call that was refused, `step` the call."""

    def __init__(self, step: str, code: int) -> None:
        super().__init__(f"{step}: {os.strerror(code)}")
        self.step, self.code = step, code


class Pairs:
    """Makes queue pairs on one device that share a completion queue; whoever makes one destroys it."""

    def __init__(self, domain: Domain, port: int, gid_index: int, gid: str) -> None:
        self._library, self._domain = domain.library, domain.handle
        self._port, self._gid_index = port, gid_index
        self._gid = ipaddress.IPv6Address(gid).packed
        for name, result, arguments in (
            ("ibv_create_cq", c_void_p, [c_void_p, c_int, c_void_p, c_void_p, c_int]),
            ("ibv_destroy_cq", c_int, [c_void_p]),
            ("ibv_create_srq", c_void_p, [c_void_p, POINTER(_SharedAttributes)]),
            ("ibv_destroy_srq", c_int, [c_void_p]),
            ("ibv_create_qp", c_void_p, [c_void_p, POINTER(_InitAttributes)]),
            ("ibv_modify_qp", c_int, [c_void_p, POINTER(_Attributes), c_int]),
            ("ibv_destroy_qp", c_int, [c_void_p]),
        ):
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
        self._queue = self._made("create_cq", self._library.ibv_create_cq(domain.context, 64, None, None, 0))

    def create(self, shared: Any = None) -> Any:
        """Return a queue pair in RESET; PairRefusedError where there can be no more."""
        initial = _InitAttributes(send_cq=self._queue, recv_cq=self._queue, srq=shared, qp_type=_RC)
        initial.cap = _Cap(send_wr=16, recv_wr=0 if shared else 1, send_sge=1, recv_sge=1)
        ctypes.set_errno(0)
        return self._made("create_qp", self._library.ibv_create_qp(self._domain, byref(initial)))

    def to_init(self, pair: Any) -> None:
        """Take it to INIT."""
        attributes = _Attributes(state=_RESET_TO_INIT, port=self._port)
        attributes.access = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ
        self._modify("init", pair, attributes, _MASK_INIT)

    def to_rtr(self, pair: Any, other: Any) -> None:
        """Take it to RTR towards another queue pair of this device: routes and addresses are resolved here."""
        attributes = _Attributes(state=_INIT_TO_RTR, path_mtu=_MTU_1024, destination=number_of(other))
        attributes.max_dest_rd_atomic, attributes.min_rnr_timer = 1, 12
        handle = attributes.address
        ctypes.memmove(byref(handle.route), self._gid, len(self._gid))
        handle.route.sgid_index, handle.route.hop_limit = self._gid_index, 64
        handle.is_global, handle.port = 1, self._port
        self._modify("rtr", pair, attributes, _MASK_RTR)

    def to_rts(self, pair: Any) -> None:
        """Take it to RTS."""
        attributes = _Attributes(state=_RTR_TO_RTS, timeout=14, retries=6, rnr_retries=6, max_rd_atomic=1)
        self._modify("rts", pair, attributes, _MASK_RTS)

    def destroy(self, pair: Any) -> None:
        """Destroy it."""
        code = self._library.ibv_destroy_qp(pair)
        if code:
            raise PairRefusedError("destroy_qp", code)

    def shared_receive_queue(self) -> Any:
        """Return a shared receive queue; PairRefusedError where the device has none."""
        attributes = _SharedAttributes(max_wr=64, max_sge=1)
        ctypes.set_errno(0)
        return self._made("create_srq", self._library.ibv_create_srq(self._domain, byref(attributes)))

    def destroy_shared(self, shared: Any) -> None:
        """Destroy a shared receive queue that no queue pair uses any more."""
        self._library.ibv_destroy_srq(shared)

    def close(self) -> None:
        """Destroy the completion queue; every queue pair must be destroyed before."""
        self._library.ibv_destroy_cq(self._queue)

    def _modify(self, step: str, pair: Any, attributes: _Attributes, mask: int) -> None:
        code = self._library.ibv_modify_qp(pair, byref(attributes), mask)
        if code:
            raise PairRefusedError(step, code)

    @staticmethod
    def _made(step: str, pointer: Any) -> Any:
        if not pointer:
            raise PairRefusedError(step, ctypes.get_errno())
        return pointer


def number_of(pair: Any) -> int:
    """Return a queue pair's number."""
    return int(ctypes.cast(pair, POINTER(_Pair)).contents.number)
