"""The folder of a trace bundle that is being recorded: one writer, whole lines, and nothing foreign overwritten."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from kvdiag.errors import InputError
from kvdiag_exporters import whole
from kvdiag_exporters.lines import Lines
from kvdiag_exporters.lock import NAME as LOCK_NAME
from kvdiag_exporters.lock import FolderLock

SCHEMA = "kvdiag.bundle/1"
NAMES = ("requests.jsonl", "counters.jsonl", "events.jsonl")


class BundleMeta(msgspec.Struct, kw_only=True):
    """What a later run keeps of meta.json: when the bundle was begun, and whom and what it was recorded of."""

    schema: str
    created: str = ""
    nodes: dict[str, Any] = {}
    metrics: dict[str, dict[str, str]] = {}
    incident_start_s: float | None = None
    source: Any = None

    @property
    def lost_lines(self) -> int:
        """How many lines of the bundle could not be written."""
        found = self.source.get("lost_lines", 0) if isinstance(self.source, dict) else 0
        return found if isinstance(found, int) else 0


class BundleFolder:
    """Opens a new or an old bundle for appending; InputError names the file that is no part of one, or its writer.

    `meta` is that of the bundle as found, `continued` whether there was one, `requests` how many it had; `cut` names
    the files whose unfinished last line was dropped. `abandon` and `reopen` go on where it was removed or moved away.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.meta = BundleMeta(schema=SCHEMA)
        self.continued = False
        self.requests = 0
        self.cut: tuple[str, ...] = ()
        self._document: bytes | None = None
        self._lock: FolderLock | None = None
        self._lines: dict[str, Lines] = {}
        self._made: list[Path] = []
        self.reopen()

    @property
    def is_open(self) -> bool:
        return self._lock is not None

    def reopen(self) -> None:
        """Make the folder where it is gone, lock it, and open its files; OSError or InputError where that fails.

        Then nothing is left of what was made for it.
        """
        self._made = [] if self.path.exists() else [self.path]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise InputError(f"{self.path} is a file, not a folder; name a new folder or that of a bundle") from None
        self._refuse_shared()
        lock: FolderLock | None = None
        lines: dict[str, Lines] = {}
        try:
            lock = FolderLock(self.path)
            self.meta = self._found_meta()
            for name in NAMES:
                if not (self.path / name).exists():
                    self._made.insert(0, self.path / name)
                lines[name] = Lines(self.path / name)
            self._lock, self._lines = lock, lines
            if self._document is not None:
                self._put(self._document)
        except BaseException:
            self._lock, self._lines = lock, lines
            self.discard()
            raise
        self.cut = tuple(name for name, one in lines.items() if one.cut)

    def request_ids(self) -> Iterator[str]:
        """Yield the ids of the requests in the bundle, and count them in `requests`."""

        class Row(msgspec.Struct):
            request_id: str

        decoder = msgspec.json.Decoder(Row)
        self.requests = 0
        with (self.path / NAMES[0]).open("rb") as file:
            for line in file:
                try:
                    request_id = decoder.decode(line).request_id
                except msgspec.MsgspecError:
                    continue
                self.requests += 1
                yield request_id

    def abandon(self) -> tuple[str, int] | None:
        """Let go of files that are no longer in the folder; return what happened and how many of this run's lines
        are lost by it. Files that were moved away keep their lines; None where all are in their places.
        """
        gone = [one for one in self._lines.values() if not one.in_place()]
        if not gone:
            if self._document is not None and self.is_open and not (self.path / "meta.json").exists():
                self._put(self._document)
            return None
        removed = [one for one in gone if one.removed()]
        what = "removed" if removed else "moved away"
        where = self.path if len(gone) == len(self._lines) else ", ".join(str(one.path) for one in gone)
        lost = sum(one.appended for one in removed)
        self._close()
        return f"{where} was {what} while it was recorded", lost

    def append(self, name: str, rows: Sequence[bytes]) -> None:
        """Append rows to one of the files; OSError where that fails, and then none of them is in it."""
        if rows:
            self._lines[name].append(rows)

    def write_meta(self, document: Mapping[str, Any]) -> None:
        """Write meta.json at once, whole."""
        self._document = msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
        if self.is_open:
            self._put(self._document)

    def close(self) -> None:
        self._close()

    def discard(self) -> None:
        """Close it, and remove what was made for it and is still empty: nothing stays of a recording that never was."""
        self._close()
        for path in self._made:
            with suppress(OSError):
                if path.is_dir():
                    path.rmdir()
                elif path.stat().st_size == 0:
                    path.unlink()

    def _close(self) -> None:
        lines, self._lines = self._lines, {}
        lock, self._lock = self._lock, None
        for one in lines.values():
            one.close()
        if lock is not None:
            lock.close()

    def _put(self, document: bytes) -> None:
        whole.put(self.path / "meta.json", document)

    def _found_meta(self) -> BundleMeta:
        path = self.path / "meta.json"
        try:
            meta = msgspec.json.decode(path.read_bytes(), type=BundleMeta)
        except FileNotFoundError:
            self._refuse_foreign()
            self.continued = False
            return BundleMeta(
                schema=SCHEMA,
                created=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            )
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: not the meta.json of a bundle: {error}; record into another folder") from None
        if meta.schema != SCHEMA:
            raise InputError(
                f"{path}: its schema is {meta.schema!r}, this version continues only {SCHEMA}; "
                "record into another folder"
            )
        self.continued = True
        return meta

    def _refuse_shared(self) -> None:
        """Refuse a folder of other things (InputError), before anything is put there; a bundle's may hold notes."""
        if (self.path / "meta.json").exists():
            return
        entries = {one.name for one in self.path.iterdir() if not one.name.startswith(".")}
        if others := sorted(entries - {*NAMES, LOCK_NAME, "lost+found"}):
            more = f" and {len(others) - 1} more" if others[1:] else ""
            raise InputError(
                f"{self.path} holds {others[0]}{more}, which is no part of a bundle; name a new or empty folder"
            )

    def _refuse_foreign(self) -> None:
        for name in NAMES:
            path = self.path / name
            if path.exists() and path.stat().st_size > 0:
                raise InputError(
                    f"{path}: there is no meta.json beside it, so this is no bundle to continue; "
                    "record into another folder"
                )
