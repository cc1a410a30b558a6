"""Registration through libibverbs itself: ctypes lets threads run side by side, pyverbs keeps the interpreter's lock.

Only functions with stable symbols and the one public structure are used (<infiniband/verbs.h>, IBVERBS_1.1).
"""

import ctypes
import errno
import os
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from kvdiag.errors import UndeterminedError

LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ = 1, 2, 4


class _Attributes(Structure):
    _fields_: ClassVar = [
        ("fw_ver", c_char * 64),
        ("node_guid", c_uint64),
        ("sys_image_guid", c_uint64),
        ("max_mr_size", c_uint64),
        ("page_size_cap", c_uint64),
        ("vendor_id", c_uint32),
        ("vendor_part_id", c_uint32),
        ("hw_ver", c_uint32),
        ("max_qp", c_int),
        ("max_qp_wr", c_int),
        ("device_cap_flags", c_uint32),
        ("max_sge", c_int),
        ("max_sge_rd", c_int),
        ("max_cq", c_int),
        ("max_cqe", c_int),
        ("max_mr", c_int),
        ("rest", c_char * 512),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the device says it allows: regions, bytes of one region, queue pairs."""

    max_mr: int
    max_mr_size: int
    max_qp: int


class RegistrationRefusedError(Exception):
    """`code` is the errno of a refused registration."""

    def __init__(self, code: int) -> None:
        super().__init__(os.strerror(code))
        self.code = code


class Domain:
    """An opened device and one protection domain on it; usable from several threads at once."""

    def __init__(self, device: str) -> None:
        self._library = _load()
        self._context = _open(self._library, device)
        self._domain = self._library.ibv_alloc_pd(self._context)
        if not self._domain:
            code = ctypes.get_errno()
            self._library.ibv_close_device(self._context)
            raise UndeterminedError(f"{device}: no protection domain: {os.strerror(code)}")

    @property
    def library(self) -> Any:
        """libibverbs, for the callers that need more of it."""
        return self._library

    @property
    def context(self) -> Any:
        """The opened device (struct ibv_context *)."""
        return self._context

    @property
    def handle(self) -> Any:
        """The protection domain (struct ibv_pd *)."""
        return self._domain

    def limits(self) -> Limits:
        """Return the device's own limits."""
        attributes = _Attributes()
        code = self._library.ibv_query_device(self._context, byref(attributes))
        if code:
            raise UndeterminedError(f"the device does not answer ibv_query_device: {os.strerror(code)}")
        return Limits(max_mr=attributes.max_mr, max_mr_size=attributes.max_mr_size, max_qp=attributes.max_qp)

    def register(self, address: int, size: int, access: int = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ) -> Any:
        """Return a registration; RegistrationRefusedError with the errno."""
        ctypes.set_errno(0)
        region = self._library.ibv_reg_mr(self._domain, address, size, access)
        if not region:
            raise RegistrationRefusedError(ctypes.get_errno())
        return region

    def register_dmabuf(self, fd: int, size: int) -> Any:
        """Return a registration of a dma-buf from its beginning; RegistrationRefusedError, ENOSYS without the call."""
        try:
            call = self._library.ibv_reg_dmabuf_mr
        except AttributeError as error:
            raise RegistrationRefusedError(errno.ENOSYS) from error
        call.restype, call.argtypes = c_void_p, [c_void_p, c_uint64, c_size_t, c_uint64, c_int, c_int]
        ctypes.set_errno(0)
        region = call(self._domain, 0, size, 0, fd, LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ)
        if not region:
            raise RegistrationRefusedError(ctypes.get_errno())
        return region

    def deregister(self, region: Any) -> None:
        """Free a registration."""
        code = self._library.ibv_dereg_mr(region)
        if code:
            raise RegistrationRefusedError(code)

    def close(self) -> None:
        """Free the domain and close the device; every registration must be freed before."""
        self._library.ibv_dealloc_pd(self._domain)
        self._library.ibv_close_device(self._context)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _load() -> Any:
    try:
        library = ctypes.CDLL("libibverbs.so.1", use_errno=True)
    except OSError as error:
        raise UndeterminedError(f"libibverbs.so.1 does not load ({error}): apt install libibverbs1") from error
    for name, result, arguments in (
        ("ibv_get_device_list", POINTER(c_void_p), [POINTER(c_int)]),
        ("ibv_free_device_list", None, [POINTER(c_void_p)]),
        ("ibv_get_device_name", c_char_p, [c_void_p]),
        ("ibv_open_device", c_void_p, [c_void_p]),
        ("ibv_close_device", c_int, [c_void_p]),
        ("ibv_query_device", c_int, [c_void_p, POINTER(_Attributes)]),
        ("ibv_alloc_pd", c_void_p, [c_void_p]),
        ("ibv_dealloc_pd", c_int, [c_void_p]),
        ("ibv_reg_mr", c_void_p, [c_void_p, c_void_p, c_size_t, c_int]),
        ("ibv_dereg_mr", c_int, [c_void_p]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _open(library: Any, device: str) -> Any:
    count = c_int(0)
    devices = library.ibv_get_device_list(byref(count))
    if not devices:
        raise UndeterminedError(f"libibverbs lists no device: {os.strerror(ctypes.get_errno())}; load ib_uverbs")
    try:
        for index in range(count.value):
            if library.ibv_get_device_name(devices[index]).decode() == device:
                context = library.ibv_open_device(devices[index])
                if not context:
                    reason = os.strerror(ctypes.get_errno())
                    raise UndeterminedError(f"{device}: {reason}: open /dev/infiniband/uverbs* to this user")
                return context
    finally:
        library.ibv_free_device_list(devices)
    raise UndeterminedError(f"{device}: libibverbs has no provider for it, install ibverbs-providers or the vendor's")
