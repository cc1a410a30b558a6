"""A longer way: hold every packet that leaves an interface for some time, where the kernel has no netem.

`python -m kvdiag_probes.demo.delay DEVICE SECONDS`, in the network namespace of the device. A TAP device is put before
the interface: what leaves is redirected to it, read here, and sent on when it is due. Segments pass whole (their
offload headers with them), so that the kernel works as it did. Ends with its parent; the redirection with the TAP.
"""

import fcntl
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from typing import NoReturn

TAP = "kvwire0"
SOL_PACKET = 263
PACKET_VNET_HDR = 15
PACKET_QDISC_BYPASS = 20
TUNSETIFF = 0x400454CA
TUNSETOFFLOAD = 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6 = 0x01, 0x02, 0x04
_LARGEST = 10 + 14 + (64 << 10)
_QUEUE_PACKETS = 10000


def open_tap() -> int:
    """Create the TAP device, which takes whole segments, and return its descriptor; OSError where it cannot be had."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", TAP.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(tap, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)
    return tap


def open_way_out(device: str) -> socket.socket:
    """Return a socket that sends frames with their offload headers, past the redirection."""
    out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    out.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    out.setsockopt(SOL_PACKET, PACKET_QDISC_BYPASS, 1)
    out.bind((device, 0))
    return out


def redirect(device: str) -> None:
    """Send what leaves the device to the TAP instead."""
    _run("ip", "link", "set", TAP, "txqueuelen", str(_QUEUE_PACKETS), "up")
    _run("tc", "qdisc", "add", "dev", device, "clsact")
    everything = ("u32", "match", "u32", "0", "0")
    _run(
        "tc", "filter", "add", "dev", device, "egress", *everything, *f"action mirred egress redirect dev {TAP}".split()
    )


def forward(tap: int, out: socket.socket, delay_s: float) -> NoReturn:
    """Pass on each frame `delay_s` seconds after it came, in order, for ever."""
    held: deque[tuple[float, bytes]] = deque()
    while True:
        wait_s = None if not held else max(0.0, held[0][0] - time.monotonic())
        select.select([tap], [], [], wait_s)
        now_s = time.monotonic()
        while True:
            try:
                held.append((now_s + delay_s, os.read(tap, _LARGEST)))
            except BlockingIOError:
                break
        while held and held[0][0] <= now_s:
            out.send(held.popleft()[1])


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=10)


def main(arguments: list[str]) -> NoReturn:
    device, delay_s = arguments[0], float(arguments[1])
    tap, out = open_tap(), open_way_out(device)
    redirect(device)
    forward(tap, out, delay_s)


if __name__ == "__main__":
    main(sys.argv[1:])
