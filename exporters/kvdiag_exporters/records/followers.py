"""Files that engines write: step records of the plugin and logs, followed as they grow."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from kvdiag.model.missing import Missing
from kvdiag.model.piece_line import PieceLine
from kvdiag.model.record import Piece, RequestPiece, Side
from kvdiag.sources.line_follower import LineFollower
from kvdiag_exporters.collectors.base import Engine
from kvdiag_exporters.going_on import Gone
from kvdiag_exporters.records.log_reader import LogLine, LogReader

READ_BYTES = 2 << 20
"""Of one file and round: 100 ms of CPU where every line tells something."""
_SIDES: dict[str, Side] = {"prefill": "prefill", "decode": "decode"}


class Followers:
    """`poll` gives the new pieces of all files; what a file does not tell of node and side, its engine's entry does.

    Counts of lines: `invalid` ones, and in `events` those with a known meaning by engine and kind. `missing` names the
    files that are not there. What a file holds when it is first looked at happened before, and is read with
    `whole_steps` only, of step records; a file that comes later is read as a whole.
    """

    def __init__(self, engines: Sequence[Engine], reader: LogReader, *, whole_steps: bool = False) -> None:
        self.events: Counter[tuple[tuple[str, str, str], str]] = Counter()
        self.missing: tuple[str, ...] = ()
        self._invalid_before = 0
        self._left: list[LineFollower[PieceLine] | LineFollower[LogLine]] = []
        decode = msgspec.json.Decoder(PieceLine).decode
        self._steps = [
            (one, LineFollower(one.step_records, decode, from_end=not whole_steps))
            for one in engines
            if one.step_records is not None
        ]
        self._logs: list[tuple[Engine, LineFollower[LogLine]]] = [
            (one, LineFollower(path, reader.decode, from_end=True)) for one in engines for path in one.logs
        ]

    def go_on(self, before: "Followers", gone: Gone) -> None:
        """Follow the files of an engine that stays from where reading ended, and count on."""
        files = {(engine.labels, one.path): one for engine, one in before._steps}
        self._steps = [(engine, files.pop((engine.labels, one.path), one)) for engine, one in self._steps]
        logs = {(engine.labels, one.path): one for engine, one in before._logs}
        self._logs = [(engine, logs.pop((engine.labels, one.path), one)) for engine, one in self._logs]
        self._left = [*files.values(), *logs.values()]
        self._invalid_before = before._invalid_before + sum(one.invalid for one in self._left)
        for key, count in before.events.items():
            if key[0][1] not in gone.engines:
                self.events[key] = count

    def settle(self) -> None:
        """Close the files that are no longer followed."""
        for one in self._left:
            one.close()
        self._left = []

    def __bool__(self) -> bool:
        return bool(self._steps or self._logs)

    @property
    def invalid(self) -> int:
        known = self._invalid_before + sum(one.invalid for _, one in self._steps)
        return known + sum(one.invalid for _, one in self._logs)

    @property
    def errors(self) -> tuple[str, ...]:
        """The latest invalid line of each file."""
        found = [one.last_error for _, one in self._steps] + [one.last_error for _, one in self._logs]
        return tuple(one for one in found if one)

    def poll(self) -> list[Piece]:
        """Return what was appended since the last call, at most READ_BYTES of each file."""
        pieces: list[Piece] = []
        missing = []
        for engine, steps in self._steps:
            lines = steps.read(READ_BYTES)
            if isinstance(lines, Missing):
                missing.append(lines.missing)
                continue
            for line in lines:
                pieces += _placed((*line.requests, *line.transfers, *line.windows), engine)
        for engine, log in self._logs:
            told = log.read(READ_BYTES)
            if isinstance(told, Missing):
                missing.append(told.missing)
                continue
            pieces += self._log_pieces(told, engine)
        self.missing = tuple(missing)
        return pieces

    def _log_pieces(self, lines: Sequence[LogLine], engine: Engine) -> Iterator[Piece]:
        for line in lines:
            for kind in line.kinds:
                self.events[engine.labels, kind] += 1
            yield from _placed(line.pieces, engine)


def _placed(pieces: Sequence[Piece], engine: Engine) -> Iterator[Piece]:
    for one in pieces:
        node = one.node or engine.node
        if isinstance(one, RequestPiece):
            side = one.side or _SIDES.get(engine.role)
            yield one if (one.node, one.side) == (node, side) else replace(one, node=node, side=side)
        else:
            yield one if one.node == node else replace(one, node=node)
