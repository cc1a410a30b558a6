"""Failures provoked on purpose, for tests and for seeing what each looks like."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import msgspec

from kvdiag_probes.control.messages import Grant, QueuePairAddress
from kvdiag_probes.datapath import Operation
from kvdiag_probes.posting import Lane

Injection = Literal[
    "wrong-rkey",
    "out-of-range",
    "no-permission",
    "wrong-lkey",
    "local-out-of-range",
    "no-receive",
    "mtu-mismatch",
    "bad-gid",
    "corrupt",
]
_NOBODY = "::ffff:10.255.255.254"
_SMALLEST_MTU = 256


def grant(inject: Injection | None, operation: Operation) -> Grant:
    """Return what the peer is to allow: for no-permission anything but the operation."""
    if inject != "no-permission":
        return "all"
    return "read" if operation.pushes else "write"


def announced(inject: Injection | None, address: QueuePairAddress) -> QueuePairAddress:
    """Return this end's address as the peer gets it: for mtu-mismatch it sets itself up for smaller packets."""
    return msgspec.structs.replace(address, mtu=_SMALLEST_MTU) if inject == "mtu-mismatch" else address


def connected(inject: Injection | None, remote: QueuePairAddress, own_mtu: int) -> QueuePairAddress:
    """Return the peer's address as this end connects to it."""
    if inject == "bad-gid":
        return msgspec.structs.replace(remote, gid=_NOBODY)
    return msgspec.structs.replace(remote, mtu=own_mtu) if inject == "mtu-mismatch" else remote


def targeted(inject: Injection | None, remote: QueuePairAddress, size: int) -> QueuePairAddress:
    """Return the peer's buffer as work requests name it."""
    if inject == "wrong-rkey":
        return msgspec.structs.replace(remote, rkey=remote.rkey ^ 0x0F00FF00)
    if inject == "out-of-range":
        return msgspec.structs.replace(remote, address_text=str(remote.address + size))
    return remote


def spoiler(inject: Injection | None, size: int) -> Callable[[Lane], Lane]:
    """Return what changes this end's buffer as work requests name it."""
    if inject == "wrong-lkey":
        return lambda lane: replace(lane, lkey=lane.lkey ^ 0x0F00FF00)
    if inject == "local-out-of-range":
        return lambda lane: replace(lane, local=lane.local + size)
    return lambda lane: lane


def corruption(inject: Injection | None) -> Callable[[memoryview], None] | None:
    """Return what spoils three bytes in the middle of a payload."""
    return _flip if inject == "corrupt" else None


def _flip(buffer: memoryview) -> None:
    middle = len(buffer) // 2
    for offset in range(middle, min(middle + 3, len(buffer))):
        buffer[offset] ^= 0xFF
