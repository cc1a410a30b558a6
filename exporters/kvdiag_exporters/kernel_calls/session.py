"""Timing some calls of the kernel: an instance, probes and histograms of its own, and nothing of them left behind.

Everything carries the name of the session, and a lock on one of the instance's files is held as long as it lives: the
kernel releases that with the process, which tells what a killed exporter left from what a live one uses.
"""

import contextlib
import errno
import logging
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from kvdiag.errors import UndeterminedError
from kvdiag.sources.tree import Tree
from kvdiag_exporters.kernel_calls.calls import CALLS, Call
from kvdiag_exporters.kernel_calls.hist import Table, parse
from kvdiag_exporters.kernel_calls.probe import Probe
from kvdiag_exporters.kernel_calls.tracefs import TraceFiles, refusal

_log = logging.getLogger(__name__)

_BUFFER_KB = 8
"""Ring buffer of the instance, per processor: histograms need a few records' room, not the default of 1.4 MB."""
_NAME = re.compile(r"kvdiag_\d+_[0-9a-f]{6}")
_ABSENT = (errno.ENOENT, errno.EADDRNOTAVAIL)
_REFUSED = (errno.EPERM, errno.EACCES, errno.EROFS)


@dataclass(frozen=True, slots=True)
class Reading:
    """What has been counted of one function: calls that worked, calls that failed, and how many returned in all.

    `returned` is None where the kernel does not tell it.
    """

    call: str
    function: str
    worked: Table
    failed: Table
    returned: int | None


class Session:
    """Armed by `arm`, read by `read`, and gone after `disarm`. Not for several threads at once."""

    def __init__(self, files: TraceFiles, tree: Tree, calls: tuple[Call, ...] = CALLS) -> None:
        self.name = f"kvdiag_{os.getpid()}_{secrets.token_hex(3)}"
        self.missing: tuple[str, ...] = ()
        self._files, self._tree, self._calls = files, tree, calls
        self._instance = f"instances/{self.name}"
        self._held: int | None = None
        self._probes: list[Probe] = []

    @property
    def timed(self) -> tuple[str, ...]:
        """The calls that are being timed, each once."""
        return tuple(dict.fromkeys(probe.call.name for probe in self._probes))

    def arm(self) -> None:
        """Begin; UndeterminedError with the reason, and nothing left behind, where no call can be timed."""
        remove_leftovers(self._files, self._tree)
        try:
            with self._told(self._instance):
                self._files.make_folder(self._instance)
            with self._told(f"{self._instance}/tracing_on"):
                self._held = self._files.lock(f"{self._instance}/tracing_on")
            with self._told(f"{self._instance}/buffer_size_kb"):
                self._files.append(f"{self._instance}/buffer_size_kb", str(_BUFFER_KB))
            self.missing = tuple(reason for call in self._calls if (reason := self._begin(call)))
            if not self._probes:
                raise UndeterminedError("; ".join(self.missing) or "there is no function to time")
        except BaseException:
            self.disarm()
            raise

    def read(self) -> Iterator[Reading]:
        """Yield what was counted since it was armed or emptied; UndeterminedError where it is no longer there."""
        returned = self._returned()
        for probe in self._probes:
            path = f"{self._instance}/{probe.hist}"
            with self._told(path):
                tables = parse(self._files.text(path))
            worked = [one for one in tables if "ns" in one.keys]
            failed = [one for one in tables if "ret" in one.keys]
            if len(worked) != 1 or len(failed) != 1:
                raise UndeterminedError(f"{path}: not the two histograms that were set there; arming again")
            yield Reading(probe.call.name, probe.function, worked[0], failed[0], returned.get(f"{probe.event}_out"))

    def empty(self, function: str) -> None:
        """Forget what was counted of a function; calls meanwhile are lost, not unseen. UndeterminedError as `read`."""
        for probe in self._probes:
            if probe.function == function:
                for place, line in probe.emptying:
                    path = f"{self._instance}/{place}"
                    with self._told(path):
                        self._files.append(path, line)

    def disarm(self) -> None:
        """Remove everything of this session; what cannot be removed is told in the log and left to the next one."""
        self._probes = []
        if self._held is not None:  # an instance of which a file is open cannot be removed
            self._files.release(self._held)
            self._held = None
        remove_session(self._files, self.name)

    def _begin(self, call: Call) -> str:
        """Time what the kernel has of a call; return why nothing is, where that is news."""
        absent, reasons = [], []
        for position, function in enumerate(call.functions):
            probe = Probe(self.name, call, position)
            try:
                for line in probe.kprobes:
                    self._files.append("kprobe_events", line)
                self._files.append("synthetic_events", probe.synthetic)
                for place, trigger in probe.triggers:
                    self._files.append(f"{self._instance}/{place}", trigger)
            except OSError as error:
                if error.errno in _REFUSED:
                    raise UndeterminedError(refusal(self._tree, "kprobe_events", error)) from None
                if error.errno in _ABSENT:
                    absent.append(function)
                else:
                    reasons.append(refusal(self._tree, function, error))
                remove_session(self._files, self.name, probe.event)
            else:
                self._probes.append(probe)
        if len(reasons) + len(absent) < len(call.functions) or (call.driver_only and not reasons):
            return ""
        if absent:
            reasons.insert(0, f"the kernel has no {', '.join(absent)}")
        return f"{call.name}: {'; '.join(reasons)}"

    def _returned(self) -> dict[str, int]:
        """Return how often each kprobe was hit or missed, by its event; nothing where the kernel does not tell."""
        found = {}
        with contextlib.suppress(OSError):
            for line in self._files.text("kprobe_profile").splitlines():
                name, *numbers = line.split()
                if len(numbers) == 2 and all(one.isdecimal() for one in numbers):
                    found[name] = sum(int(one) for one in numbers)
        return found

    @contextlib.contextmanager
    def _told(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UndeterminedError(refusal(self._tree, path, error)) from None
        except ValueError as error:
            raise UndeterminedError(f"{path}: {error}") from None


def remove_leftovers(files: TraceFiles, tree: Tree) -> None:
    """Remove the sessions that nobody holds any more; UndeterminedError where that cannot be found out."""
    try:
        names = {name for name in files.names("instances") if _NAME.fullmatch(name)}
        names.update(_NAME.findall(files.text("kprobe_events") + files.text("synthetic_events")))
    except OSError as error:
        raise UndeterminedError(refusal(tree, error.filename or "instances", error)) from None
    for name in sorted(names):
        try:
            files.release(files.lock(f"instances/{name}/tracing_on"))
        except FileNotFoundError:
            pass  # without an instance it is nobody's
        except OSError:
            continue  # a live one's
        _log.info("kernel_timing: removing the probes of an exporter that was killed: %s", name)
        remove_session(files, name)


def remove_session(files: TraceFiles, session: str, event: str = "") -> None:
    """Remove a session with all its events, or of those only one function's; what cannot be removed is in the log."""
    prefix = event or f"{session}__"
    try:
        _unset_triggers(files, session, prefix)
        if not event:
            with contextlib.suppress(FileNotFoundError):
                files.remove_folder(f"instances/{session}")
        for line in files.text("synthetic_events").splitlines():
            name = re.split(r"\s", line, maxsplit=1)[0]
            if name.startswith(prefix):
                files.append("synthetic_events", f"!{name}")
        for line in files.text("kprobe_events").splitlines():
            place = line.partition(" ")[0].partition(":")[2]
            if place.startswith(f"{session}/{prefix}"):
                files.append("kprobe_events", f"-:{place}")
    except OSError as error:
        _log.warning("kernel_timing: %s could not be removed from the kernel: %s", session, error)


def _unset_triggers(files: TraceFiles, session: str, prefix: str) -> None:
    """Take all triggers off the events of an instance: those first that refer to others."""
    for folder in (session, "synthetic"):
        try:
            names = files.names(f"instances/{session}/events/{folder}")
        except FileNotFoundError:
            continue
        for name in sorted((name for name in names if name.startswith(prefix)), reverse=True):  # _out before _in
            path = f"instances/{session}/events/{folder}/{name}/trigger"
            for line in files.text(path).splitlines():
                if line.startswith("hist:"):
                    files.append(path, f"!{line.rpartition(' [')[0]}")
