"""NIXL's BUFFER rings, read as they lie: no position is moved, no event is consumed.

The version in the header does not identify the layout (two wheels write 2): the size of an event does, and it follows
from the file's size. Layouts, little-endian, after a header of 40 bytes:
56 bytes (wheels 0.7 to 1.0): time u64, category i32, name char[32], pad, value u64
48 bytes (wheel 1.1): category i32, name char[32], pad, value u64
16 bytes, version 2 (wheel 1.2): category i32, type u32, value u64
16 bytes, version 3 and 4 (wheels 1.3 to 1.5): type u32, uninitialised pad, value u64
"""

import struct
from pathlib import Path

from kvdiag.model.missing import Missing
from kvdiag.model.nixl import EVENTS, NixlRing, NixlRings
from kvdiag.sources.base import Context
from kvdiag.sources.nixl_mp import ENDPOINT

_HEADER = struct.Struct("<QQiiQQ")
_NAMED = {56: struct.Struct("<8x4x32s4xQ"), 48: struct.Struct("<4x32s4xQ")}
_TYPED = {2: struct.Struct("<4xIQ"), 3: struct.Struct("<I4xQ"), 4: struct.Struct("<I4xQ")}
_TYPED_BYTES = 16
_MAX_CAPACITY = 1 << 20


class NixlRingSource:
    """The rings in the folder that the context's endpoint names."""

    part = NixlRings

    def read(self, context: Context) -> NixlRings | Missing:
        folder = context.endpoints.get(ENDPOINT)
        return Missing("no NIXL telemetry folder was named") if folder is None else read_rings(Path(folder))


def read_rings(folder: Path) -> NixlRings | Missing:
    """Return the waiting events of every agent; files of other names beside them are not opened."""
    rings, unreadable = [], {}
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix not in (".mmap", ".lock") and path.is_file())
    except OSError as error:
        return Missing(f"{folder}: {error.strerror or error}")
    for path in paths:
        try:
            rings.append(read_ring(path))
        except (OSError, ValueError) as error:
            unreadable[str(path)] = str(error)
    return NixlRings(rings=tuple(rings), unreadable=unreadable)


def read_ring(path: Path) -> NixlRing:
    """Return what waits in one ring; ValueError where the file is not a ring of a known layout."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
        if len(head) < _HEADER.size:
            raise ValueError(f"holds no NIXL ring: {len(head)} bytes")
        write, read, version, _expected, capacity, mask = _HEADER.unpack(head)
        if not 1 < capacity <= _MAX_CAPACITY or capacity & mask or mask != capacity - 1 or max(write, read) > mask:
            raise ValueError("holds no NIXL ring: its header is not one")
        event_bytes, rest = divmod(size - _HEADER.size, capacity)
        events = _decoder(event_bytes, version, rest)
        data = file.read(size - _HEADER.size)
    if len(data) < event_bytes * capacity:
        raise ValueError("became shorter while it was read")
    waiting = (write - read) & mask
    return NixlRing(
        path=str(path),
        agent=path.name,
        version=version,
        event_bytes=event_bytes,
        capacity=capacity,
        read_position=read,
        write_position=write,
        full=waiting == mask,
        events=tuple(events(data, (place & mask) * event_bytes) for place in range(read, read + waiting)),
    )


class _Events:
    def __init__(self, layout: struct.Struct) -> None:
        self._layout = layout

    def __call__(self, data: bytes, offset: int) -> tuple[str, int]:
        """Return name and value of the event at an offset; a type of a newer NIXL is named by its number."""
        kind, value = self._layout.unpack_from(data, offset)
        if isinstance(kind, bytes):
            return kind.partition(b"\0")[0].decode(errors="replace").removeprefix("agent_"), value
        return EVENTS[kind] if kind < len(EVENTS) else f"type_{kind}", value


def _decoder(event_bytes: int, version: int, rest: int) -> _Events:
    layout = _TYPED.get(version) if event_bytes == _TYPED_BYTES else _NAMED.get(event_bytes)
    if layout is None or rest:
        raise ValueError(f"is a NIXL ring of version {version} with events of {event_bytes} bytes: not known")
    return _Events(layout)


SOURCE = NixlRingSource()
