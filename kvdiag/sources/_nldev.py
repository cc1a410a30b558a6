"""The wire form of RDMA netlink (include/uapi/rdma/rdma_netlink.h): requests, replies and attributes."""

import contextlib
import errno
import os
import socket
import struct
import sys
from collections.abc import Iterator
from enum import IntEnum
from typing import Protocol

from kvdiag.errors import UndeterminedError

NETLINK_RDMA = 20
_CLIENT_NLDEV = 5
_NLMSG_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE_HEADER = struct.Struct("=HH")
_TYPE_MASK = 0x3FFF
_F_REQUEST, _F_DUMP = 0x1, 0x300
_MSG_ERROR, _MSG_DONE = 2, 3
_TIMEOUT_S = 5.0
# The kernel never builds a dump message above 32 KiB (netlink_dump in net/netlink/af_netlink.c).
_BUFFER_BYTES = 1 << 16


class Command(IntEnum):
    GET = 1
    PORT_GET = 5
    SYS_GET = 6
    RES_GET = 9
    RES_QP_GET = 10
    RES_CM_ID_GET = 11
    RES_CQ_GET = 12
    RES_MR_GET = 13
    RES_PD_GET = 14
    STAT_GET = 17
    RES_CTX_GET = 22
    RES_SRQ_GET = 23


class Attribute(IntEnum):
    DEV_INDEX = 1
    DEV_NAME = 2
    PORT_INDEX = 3
    RES_SUMMARY = 15
    RES_SUMMARY_ENTRY = 16
    RES_SUMMARY_ENTRY_NAME = 17
    RES_SUMMARY_ENTRY_CURR = 18
    RES_QP = 19
    RES_LQPN = 21
    RES_RQPN = 22
    RES_TYPE = 26
    RES_STATE = 27
    RES_PID = 28
    RES_KERN_NAME = 29
    RES_CM_ID = 30
    RES_CQ = 35
    RES_MR = 40
    RES_MRLEN = 45
    RES_PD = 46
    RES_PDN = 60
    RES_MRN = 62
    RES_CTXN = 64
    SYS_ATTR_NETNS_MODE = 66
    STAT_MODE = 74
    STAT_RES = 75
    STAT_COUNTER = 77
    STAT_COUNTER_ENTRY = 78
    STAT_COUNTER_ID = 79
    STAT_HWCOUNTERS = 80
    STAT_HWCOUNTER_ENTRY = 81
    STAT_HWCOUNTER_ENTRY_NAME = 82
    STAT_HWCOUNTER_ENTRY_VALUE = 83
    RES_CTX = 86
    RES_SRQ = 88


class Channel(Protocol):
    """One conversation with the kernel's RDMA netlink, or a recording of one."""

    def ask(self, command: Command, attributes: bytes = b"", *, dump: bool = True) -> list[bytes]:
        """Return the payload of each reply message; OSError where the kernel refuses the request."""
        ...


class KernelChannel:
    """A NETLINK_RDMA socket, open while the `with` block runs; needs no privilege, and reads only."""

    def __init__(self) -> None:
        self._sequence = 0

    def __enter__(self) -> "KernelChannel":
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_RDMA)
        except OSError as error:
            if error.errno in (errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT):
                raise UndeterminedError(
                    "this kernel has no RDMA netlink (ib_core is neither built in nor loaded): modprobe ib_core"
                ) from error
            raise
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self._socket.settimeout(_TIMEOUT_S)
        self._socket.bind((0, 0))
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, command: Command, attributes: bytes = b"", *, dump: bool = True) -> list[bytes]:
        self._sequence += 1
        flags = _F_REQUEST | (_F_DUMP if dump else 0)
        kind = (_CLIENT_NLDEV << 10) + command
        length = _NLMSG_HEADER.size + len(attributes)
        self._socket.send(_NLMSG_HEADER.pack(length, kind, flags, self._sequence, 0) + attributes)
        payloads: list[bytes] = []
        while True:
            data = self._socket.recv(_BUFFER_BYTES)
            for message_kind, sequence, payload in split_messages(data):
                if sequence != self._sequence:
                    continue
                if message_kind in (_MSG_DONE, _MSG_ERROR):
                    # Either ends the answer; a dump that failed half-way carries its error in the DONE message.
                    code = -struct.unpack_from("=i", payload)[0] if len(payload) >= 4 else 0
                    if code > 0:
                        raise OSError(code, f"RDMA netlink {command.name}: {os.strerror(code)}")
                    return payloads
                payloads.append(payload)
                if not dump:
                    return payloads


def split_messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield type, sequence number and payload of each netlink message; ValueError where a length is impossible."""
    offset = 0
    while offset + _NLMSG_HEADER.size <= len(data):
        length, kind, _flags, sequence, _port = _NLMSG_HEADER.unpack_from(data, offset)
        if length < _NLMSG_HEADER.size or offset + length > len(data):
            raise ValueError(f"netlink message of {length} bytes at offset {offset} of {len(data)}")
        yield kind, sequence, data[offset + _NLMSG_HEADER.size : offset + length]
        offset += (length + 3) & ~3


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and value of each attribute at one level; ValueError where a length is impossible."""
    offset, end = 0, len(data)
    while offset + 4 <= end:
        length, kind = _ATTRIBUTE_HEADER.unpack_from(data, offset)
        if length < 4 or offset + length > end:
            raise ValueError(f"netlink attribute of {length} bytes at offset {offset} of {end}")
        yield kind & _TYPE_MASK, data[offset + 4 : offset + length]
        offset += (length + 3) & ~3


def number(value: bytes) -> int:
    """Return an unsigned integer attribute of any width in the machine's byte order."""
    return int.from_bytes(value, sys.byteorder)


def text(value: bytes) -> str:
    """Return a NUL-terminated string attribute."""
    return value.partition(b"\0")[0].decode(errors="replace")


def u32(kind: Attribute, value: int) -> bytes:
    """Return an encoded 32-bit attribute."""
    return _ATTRIBUTE_HEADER.pack(8, kind) + struct.pack("=I", value)
