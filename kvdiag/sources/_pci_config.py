"""Settings in PCI configuration space: from its bytes, or from the text of `lspci -vvv`."""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from kvdiag.model.missing import Missing

# Bit positions of the ACS Control Register, named as lspci names them (PCI Express Base Specification 7.7.11.3).
_ACS_BITS = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")
_CAP_EXPRESS = 0x10
_EXT_CAP_ACS = 0x0D
_HIDDEN_BYTES = 64
"""sysfs shows the first 64 bytes to everyone, all of them only with CAP_SYS_ADMIN."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The part of a function's configuration space that decides how peer-to-peer traffic passes."""

    acs: tuple[str, ...] | Missing
    relaxed_ordering: bool | Missing
    atomic_completer_bits: tuple[int, ...] | Missing


def unknown(why: Missing) -> Settings:
    """Return settings of which none could be read."""
    return Settings(why, why, why)


def from_bytes(config: bytes, path: str) -> Settings:
    """Return the settings in a function's configuration space; Missing where its capabilities are hidden or cut."""
    if len(config) <= _HIDDEN_BYTES:
        return unknown(Missing(f"{path} shows only its first {len(config)} bytes without CAP_SYS_ADMIN"))
    try:
        express = _find(config, _CAP_EXPRESS)
        acs = _find_extended(config, _EXT_CAP_ACS)
        if express is None:
            return Settings((), Missing(f"{path}: not a PCI Express function"), ())
        (device_control,) = struct.unpack_from("<H", config, express + 8)
        (device_capabilities_2,) = struct.unpack_from("<I", config, express + 0x24)
        control = struct.unpack_from("<H", config, acs + 6)[0] if acs is not None else 0
    except struct.error:
        return unknown(Missing(f"{path} ends before its capabilities do"))
    return Settings(
        acs=tuple(name for bit, name in enumerate(_ACS_BITS) if control >> bit & 1),
        # Device Control bit 4: Enable Relaxed Ordering; Device Capabilities 2 bits 7-9: AtomicOp completer support.
        relaxed_ordering=bool(device_control >> 4 & 1),
        atomic_completer_bits=tuple(
            width for bit, width in ((7, 32), (8, 64), (9, 128)) if device_capabilities_2 >> bit & 1
        ),
    )


def _find(config: bytes, wanted: int) -> int | None:
    """Walk the capability list that byte 0x34 begins; each offset once, so a looped list ends."""
    (status,) = struct.unpack_from("<H", config, 6)
    if not status >> 4 & 1:
        return None
    offset = config[0x34] & 0xFC
    for _ in range(48):
        if not offset:
            return None
        identity, following = struct.unpack_from("<BB", config, offset)
        if identity == wanted:
            return offset
        offset = following & 0xFC
    return None


def _find_extended(config: bytes, wanted: int) -> int | None:
    offset = 0x100
    for _ in range(960):
        if offset + 4 > len(config):
            return None
        (header,) = struct.unpack_from("<I", config, offset)
        if header in (0, 0xFFFFFFFF):
            return None
        if header & 0xFFFF == wanted:
            return offset
        offset = header >> 20 & 0xFFC
        if offset < 0x100:
            return None
    return None


_HEAD = re.compile(r"^((?:[0-9a-f]{4,}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) ")
_ACS_CONTROL = re.compile(r"ACSCtl:\s+(.*)")
_RELAXED = re.compile(r"RlxdOrd([+-])")
_ATOMICS = re.compile(r"AtomicOpsCap:.*?32bit([+-]) 64bit([+-])(?: 128bitCAS([+-]))?")
_HIDDEN_TEXT = "Capabilities: <access denied>"


def from_lspci(text: str, origin: str) -> dict[str, Settings]:
    """Return the settings by full PCI address from the text of `lspci -vvv` (with or without -D)."""
    return {address: _of_block("\n".join(lines), f"{origin}, {address}") for address, lines in _blocks(text)}


def _blocks(text: str) -> Iterator[tuple[str, list[str]]]:
    address, lines = "", list[str]()
    for line in text.splitlines():
        match = _HEAD.match(line)
        if match is None:
            lines.append(line)
            continue
        if address:
            yield address, lines
        # lspci leaves the domain out where all functions are in domain 0.
        address, lines = match[1] if match[1].count(":") == 2 else f"0000:{match[1]}", []
    if address:
        yield address, lines


def _of_block(block: str, where: str) -> Settings:
    if _HIDDEN_TEXT in block:
        return unknown(Missing(f"{where}: capabilities are shown to root only"))
    acs = _ACS_CONTROL.search(block)
    relaxed = _RELAXED.search(block.partition("DevCtl:")[2])
    atomics = _ATOMICS.search(block)
    return Settings(
        acs=tuple(name for name in _ACS_BITS if f"{name}+" in acs[1].split()) if acs else (),
        relaxed_ordering=relaxed[1] == "+" if relaxed else Missing(f"{where}: no DevCtl with RlxdOrd"),
        atomic_completer_bits=(
            tuple(width for width, sign in zip((32, 64, 128), atomics.groups(), strict=True) if sign == "+")
            if atomics
            else Missing(f"{where}: no AtomicOpsCap")
        ),
    )
