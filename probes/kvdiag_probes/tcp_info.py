"""How many payload bytes the kernel moved over one TCP connection."""

import socket
import struct

# struct tcp_info (include/uapi/linux/tcp.h): u64 tcpi_bytes_acked at byte 120, tcpi_bytes_received at 128; Linux 4.2.
_OFFSET = 120
_FIELDS = struct.Struct("=QQ")


def moved_bytes(connection: socket.socket) -> tuple[int, int]:
    """Return (bytes the peer acknowledged, bytes received); OSError where the kernel does not tell."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _OFFSET + _FIELDS.size)
    if len(info) < _OFFSET + _FIELDS.size:
        raise OSError("this kernel's TCP_INFO has no byte counts")
    acked, received = _FIELDS.unpack_from(info, _OFFSET)
    return acked, received
