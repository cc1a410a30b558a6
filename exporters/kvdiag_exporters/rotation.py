"""A folder of trace bundles, one for each period; the oldest are removed when there are more than are kept."""

import logging
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kvdiag.errors import InputError
from kvdiag.model.transfer import TransferRecord
from kvdiag_exporters import lock, parquet
from kvdiag_exporters.bundle_folder import NAMES
from kvdiag_exporters.recorder import Recorder
from kvdiag_exporters.scraper import Collection

_log = logging.getLogger(__name__)
RETRY_S = 60.0
BACK_S = 60.0
"""A clock that is set back by more begins a new bundle: the period of the old one may be years ahead."""
_FORM = "%Y%m%dT%H%M%SZ"
_NAME = re.compile(r"\d{8}T\d{6}Z")
_TABLES = {name.removesuffix(".jsonl") for name in NAMES}
_OURS = {*NAMES, "meta.json", "meta.json.new", lock.NAME}
_OURS |= {f"{table}.parquet{part}" for table in _TABLES for part in ("", ".new")}
"""What a bundle holds; a folder that holds anything else is somebody's, and is left."""

Make = Callable[[Path, Recorder | None], Recorder]


class RotatingRecorder:
    """Records into FOLDER/<UTC time of its begin>, into a new one every `every_s`; `keep` of them stay, and as many
    of periods without a request.

    The newest bundle is continued where its period is not over. Where a new one cannot be begun the old one goes on,
    and it is tried again a minute later. `make` opens a recorder, that of the period before given. With `parquet`
    bundles whose period is over are rewritten as such.
    """

    def __init__(
        self, folder: Path, make: Make, every_s: float, keep: int, now_s: float, *, parquet: bool = False
    ) -> None:
        self._folder, self._make, self._every_s, self._keep, self._parquet = folder, make, every_s, keep, parquet
        self._rewriting: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._failed = ""
        bundles = self._bundles()
        begun_s = max((one for one, _ in bundles if one <= now_s < one + every_s), default=now_s)
        self._path = folder / _name(begun_s)
        self._current = make(self._path, None)
        self._begun_s, self._ends_s = begun_s, begun_s + every_s
        self._remove_old()
        self._rewrite()

    def status(self) -> dict[str, Any]:
        """Return that of the bundle being written, and how many there are."""
        return {**self._current.status(), "bundles": len(self._bundles()), "rotation_problem": self._failed}

    def describe(self) -> str:
        return f"{self._current.describe()}; a new one every {self._every_s:g} s, {self._keep} kept"

    def write_records(self, records: Sequence[TransferRecord]) -> None:
        with self._lock:
            self._current.write_records(records)

    def write(self, collection: Collection) -> None:
        """Append a collection, to a new bundle where the period of the old one is over, or not yet begun."""
        if not self._begun_s - BACK_S <= collection.time_s < self._ends_s:
            self._rotate(collection.time_s)
        self._current.write(collection)

    def close(self) -> None:
        """End the recording; a rewriting that is under way is ended, too, and begun anew by the next run."""
        self._current.close()
        if self._rewriting is not None:
            self._rewriting.kill()
            self._rewriting.wait()
            self._told()

    def _rotate(self, now_s: float) -> None:
        path = self._folder / _name(now_s)
        if path == self._path:
            self._begun_s, self._ends_s = now_s, now_s + self._every_s
            return
        try:
            following = self._make(path, self._current)
        except InputError as error:
            if not self._failed:
                _log.error("%s; going on in the old bundle, trying again every %g s", error, RETRY_S)
            self._failed = str(error)
            self._begun_s, self._ends_s = now_s, now_s + RETRY_S
            return
        with self._lock:
            before, self._current, self._path = self._current, following, path
        before.close()
        self._failed = ""
        self._begun_s, self._ends_s = now_s, now_s + self._every_s
        self._remove_old()
        self._rewrite()

    def _rewrite(self) -> None:
        """Begin to rewrite the bundles that are finished, where no earlier run is still at it."""
        if not self._parquet or (self._rewriting is not None and self._rewriting.poll() is None):
            return
        self._told()
        try:
            self._rewriting = parquet.start([path for _, path in self._bundles() if path != self._path])
        except OSError as error:
            _log.warning("bundles stay as JSON lines: %s", error.strerror)

    def _told(self) -> None:
        """Log what the last run could not rewrite."""
        if self._rewriting is not None and self._rewriting.stderr is not None:
            for line in self._rewriting.stderr.read().decode(errors="replace").splitlines():
                _log.warning("%s", line)
            self._rewriting.stderr.close()
            self._rewriting = None

    def _bundles(self) -> list[tuple[float, Path]]:
        """Return the bundles by their begin, the oldest first."""

        def found() -> Iterator[tuple[float, Path]]:
            for path in self._folder.iterdir() if self._folder.is_dir() else ():
                if _NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                    try:
                        begun = datetime.strptime(path.name, _FORM).replace(tzinfo=UTC)
                    except ValueError:
                        continue
                    yield begun.timestamp(), path

        return sorted(found())

    def _old(self) -> list[Path]:
        """Return all but the newest `keep` bundles with requests, and the newest `keep` of idle periods.

        An idle night would push out the incident of the evening before.
        """
        # One that is being written may be idle yet, and where the clock was set back others are of a time to come.
        over = [path for _, path in self._bundles() if path != self._path]
        busy = [path for path in over if _has_requests(path)]
        idle = [path for path in over if path not in busy]
        return [*busy[: max(0, len(busy) + 1 - self._keep)], *idle[: -self._keep]]

    def _remove_old(self) -> None:
        for path in self._old():
            try:
                foreign = sorted({one.name for one in path.iterdir()} - _OURS)
                if foreign or not (path / "meta.json").is_file():
                    _log.warning("%s is not removed: %s", path, ", ".join(foreign) or "no meta.json in it")
                    continue
                for one in path.iterdir():
                    one.unlink()
                path.rmdir()
            except OSError as error:
                _log.warning("%s is not removed: %s", path, error.strerror)


def _has_requests(bundle: Path) -> bool:
    """Return whether a bundle has any request; one that cannot be looked at may have some."""
    try:
        return (bundle / "requests.jsonl").stat().st_size > 0
    except FileNotFoundError:
        return (bundle / "requests.parquet").exists()
    except OSError:
        return True


def _name(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime(_FORM)
