"""The statistics of one interface from the kernel's ethtool ioctl (include/uapi/linux/ethtool.h).

pyroute2 has no call for them, and netlink carries only the standard groups, not the driver's own counters.
"""

import ctypes
import fcntl
import socket
import struct

_SIOCETHTOOL = 0x8946
_GDRVINFO, _GSTRINGS, _GSTATS = 0x03, 0x1B, 0x1D
_SET_STATS = 1
_NAME_BYTES = 32
_DRVINFO_BYTES, _DRVINFO_N_STATS = 196, 180
_MOST = 1 << 16


def statistics(interface: str) -> dict[str, int]:
    """Return the counters of an interface by the driver's names; raises OSError where there are none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        info = bytearray(_DRVINFO_BYTES)
        struct.pack_into("=I", info, 0, _GDRVINFO)
        _ask(channel, interface, info)
        (count,) = struct.unpack_from("=I", info, _DRVINFO_N_STATS)
        if not 0 < count <= _MOST:
            raise OSError(95, "the driver shows no counters")
        # Room for more than was announced: queues may be added between the calls, and the kernel writes all it has.
        room = 2 * count + 256
        names = bytearray(12 + room * _NAME_BYTES)
        struct.pack_into("=III", names, 0, _GSTRINGS, _SET_STATS, count)
        _ask(channel, interface, names)
        values = bytearray(8 + room * 8)
        struct.pack_into("=II", values, 0, _GSTATS, count)
        _ask(channel, interface, values)
    (listed,) = struct.unpack_from("=I", names, 8)
    (counted,) = struct.unpack_from("=I", values, 4)
    found = {}
    for index in range(min(listed, counted, room)):
        start = 12 + index * _NAME_BYTES
        name = bytes(names[start : start + _NAME_BYTES]).partition(b"\0")[0].decode(errors="replace").strip()
        (found[name],) = struct.unpack_from("=Q", values, 8 + index * 8)
    return found


def _ask(channel: socket.socket, interface: str, data: bytearray) -> None:
    address = ctypes.addressof(ctypes.c_char.from_buffer(data))
    fcntl.ioctl(channel.fileno(), _SIOCETHTOOL, struct.pack("=16sQ16x", interface.encode()[:15], address))
