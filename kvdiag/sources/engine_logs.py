"""Events out of engine logs: those given with --log, and every file of a copied tree's /logs."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kvdiag.derive.log_lines import DETECTORS, Detector
from kvdiag.model.engine_log import EngineLog, EngineLogs, LogEvent
from kvdiag.model.missing import Missing
from kvdiag.sources.base import Context
from kvdiag.sources.tree import Tree, reason

END_BYTES = 16 << 20
"""Read at each end of a longer file: the start shows what failed first, the end what fails now. Together about 2 s
of CPU where every line is an error."""
MOST_FILES = 64
_BLOCK_BYTES = 1 << 20
_LINE_BYTES = 4096
"""Looked at of one line, around what was found: vLLM's debug lines hold whole prompts."""
_HEAD = 160
_TEXT = 320
"""Characters shown before what was found, and in all."""
_MOST_LINES = 50_000
"""Looked at for one detector in one end of a file; what comes after is not counted. A long incident has thousands."""
_MOST_PER_KIND = 400
"""Distinct events kept of one kind, more than 16 NICs times 16 peers; the rest is counted under the last one kept."""


class EngineLogsSource:
    """Lines are matched, not kept: of a line that no detector knows nothing is stored."""

    part = EngineLogs

    def read(self, context: Context) -> EngineLogs:
        given = tuple(_read(str(path), path) for path in context.logs[:MOST_FILES])
        if context.live:
            return EngineLogs(files=given)
        tree = Tree.of(context)
        names = tree.names("/logs")
        if isinstance(names, Missing):
            return EngineLogs(files=names if tree.exists("/logs") and not given else given)
        known = {os.path.realpath(path) for path in context.logs}
        others = [name for name in names if os.path.realpath(f"{context.root}/logs/{name}") not in known]
        held = (_in_tree(tree, f"/logs/{name}") for name in others[: MOST_FILES - len(given)])
        return EngineLogs(files=(*given, *held))


def _in_tree(tree: Tree, path: str) -> EngineLog:
    try:
        return _read(path, tree.local(path))
    except (OSError, ValueError) as error:
        return _unreadable(path, reason(path, error).missing)


def _read(path: str, local: Path) -> EngineLog:
    try:
        descriptor = os.open(local, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        return _unreadable(path, reason(path, error).missing)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return _unreadable(path, f"{path} is not a regular file")
        return _scan(path, descriptor, status.st_size)
    except OSError as error:
        return _unreadable(path, reason(path, error).missing)
    finally:
        os.close(descriptor)


def _unreadable(path: str, why: str) -> EngineLog:
    return EngineLog(path=path, read_bytes=0, unread_bytes=0, lines=0, merged=0, unreadable=why, events=())


@dataclass(slots=True)
class _Found:
    detector: Detector
    fields: dict[str, str]
    numbers: dict[str, float]
    offset: int
    place: str
    text: str
    count: int = 1


@dataclass(slots=True)
class _Events:
    by_key: dict[tuple[str, ...], _Found] = field(default_factory=dict)
    last: dict[str, _Found] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    merged: int = 0

    def add(self, found: _Found) -> None:
        kind = found.detector.kind
        key = (kind, *(part for pair in sorted(found.fields.items()) for part in pair))
        known = self.by_key.get(key)
        if known is None and self.kinds.get(kind, 0) >= _MOST_PER_KIND:
            known = self.last[kind]
            self.merged += 1
        if known is None:
            self.by_key[key] = self.last[kind] = found
            self.kinds[kind] = self.kinds.get(kind, 0) + 1
            return
        known.count += 1
        for name, number in found.numbers.items():
            known.numbers[name] = known.numbers.get(name, 0.0) + number
        if found.offset < known.offset:
            known.offset, known.place, known.text = found.offset, found.place, found.text


def _scan(path: str, descriptor: int, size: int) -> EngineLog:
    events = _Events()
    lines = read = 0
    ends = ((0, size),) if size <= 2 * END_BYTES else ((0, END_BYTES), (size - END_BYTES, size))
    for start, end in ends:
        left = dict.fromkeys(range(len(DETECTORS)), _MOST_LINES)
        for offset, block in _blocks(descriptor, start, end):
            if read == 0 and b"\0" in block[:4096]:
                return _unreadable(path, f"{path} is not text (compressed? give the unpacked file)")
            _match(block, offset, lines if start == 0 else None, events, left)
            lines += block.count(b"\n")
            read += len(block)
    found = sorted(events.by_key.values(), key=lambda item: (item.offset, item.detector.kind))
    return EngineLog(
        path=path,
        read_bytes=read,
        unread_bytes=max(0, size - read),
        lines=lines,
        merged=events.merged,
        unreadable=None,
        events=tuple(
            LogEvent(
                kind=item.detector.kind,
                fields=item.fields,
                numbers=item.numbers,
                count=item.count,
                offset=item.offset,
                place=item.place,
                text=item.text,
            )
            for item in found
        ),
    )


def _blocks(descriptor: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield blocks that end at a line's end (a longer line is cut), each with its offset."""
    offset = start
    while offset < end:
        block = os.pread(descriptor, min(_BLOCK_BYTES, end - offset), offset)
        if not block:
            return
        if offset + len(block) < end:
            block = block[: block.rfind(b"\n") + 1] or block
        yield offset, block
        offset += len(block)


def _match(block: bytes, offset: int, lines_before: int | None, events: _Events, left: dict[int, int]) -> None:
    for number, detector in enumerate(DETECTORS):
        lines, counted = 0, 0
        position = block.find(detector.literal)
        while position >= 0 and left[number] > 0:
            left[number] -= 1
            first, last = max(0, position - _LINE_BYTES // 2), min(len(block), position + _LINE_BYTES // 2)
            start = max(block.rfind(b"\n", first, position) + 1, first)
            end = block.find(b"\n", position, last)
            end = end if end >= 0 else last
            line = block[start:end].decode(errors="replace")
            read = detector.read(line)
            if read is not None:
                lines += block.count(b"\n", counted, position)
                counted = position
                place = f"byte {offset + start}" if lines_before is None else f"line {lines_before + lines + 1}"
                events.add(_Found(detector, read[0], read[1], offset + start, place, _excerpt(line, detector)))
            position = block.find(detector.literal, max(end, position + 1))


def _excerpt(line: str, detector: Detector) -> str:
    at = line.find(detector.literal.decode())
    head = line[max(0, at - _HEAD) : at]
    if at > _HEAD:
        head = head.partition(" ")[2]
    text = " ".join((head + line[at:]).split())
    return text if len(text) <= _TEXT else f"{text[: _TEXT // 2]} … {text[-_TEXT // 2 :]}"


SOURCE = EngineLogsSource()
