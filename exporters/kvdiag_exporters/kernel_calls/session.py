"""Timing some calls of the kernel: an instance, probes and histograms of its own, and nothing of them left behind.

Everything carries the name of the session. The kernel removes no instance of which a file is open, so one that it does
remove belonged to nobody any more: that tells what a killed exporter left from what a live one uses.
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
from kvdiag_exporters.kernel_calls.probe import Probe, with_clear
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
                self._held = self._files.hold(f"{self._instance}/tracing_on")
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
        """Forget what was counted of a function; calls meanwhile are lost. UndeterminedError as for `read`."""
        for probe in self._probes:
            if probe.function == function:
                for place, trigger in probe.triggers:
                    path = f"{self._instance}/{place}"
                    with self._told(path):
                        self._files.append(path, with_clear(trigger))

    def disarm(self) -> None:
        """Remove everything of this session; what cannot be removed is told in the log and left to the next one."""
        if self._held is not None:
            self._files.release(self._held)
            self._held = None
        self._probes = []
        if not drop_instance(self._files, self.name):
            _log.warning("kernel_timing: %s is in use by another program and stays", self._instance)
        remove_events(self._files, self.name)

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
                self._take_back(probe)
            else:
                self._probes.append(probe)
        if len(reasons) + len(absent) < len(call.functions) or (call.driver_only and not reasons):
            return ""
        if absent:
            reasons.insert(0, f"the kernel has no {', '.join(absent)}")
        return f"{call.name}: {'; '.join(reasons)}"

    def _take_back(self, probe: Probe) -> None:
        for place, trigger in reversed(probe.triggers):
            with contextlib.suppress(OSError):  # it was never set
                self._files.append(f"{self._instance}/{place}", f"!{trigger}")
        remove_events(self._files, self.name, probe.event)

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
        live = {name for name in files.names("instances") if _NAME.fullmatch(name) and not drop_instance(files, name)}
        text = files.text("kprobe_events") + files.text("synthetic_events")
    except OSError as error:
        raise UndeterminedError(refusal(tree, error.filename or "instances", error)) from None
    for name in sorted(set(_NAME.findall(text)) - live):
        _log.info("kernel_timing: removing the probes of an exporter that was killed: %s", name)
        remove_events(files, name)


def drop_instance(files: TraceFiles, name: str) -> bool:
    """Remove an instance with all its triggers, and return whether it is gone: one that is held stays."""
    try:
        files.remove_folder(f"instances/{name}")
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def remove_events(files: TraceFiles, session: str, event: str = "") -> None:
    """Remove the events of a session, or those of one function."""
    try:
        for line in files.text("synthetic_events").splitlines():
            name = re.split(r"\s", line, maxsplit=1)[0]
            if name.startswith(event or f"{session}__"):
                files.append("synthetic_events", f"!{name}")
        for line in files.text("kprobe_events").splitlines():
            place = line.partition(" ")[0].partition(":")[2]
            if place.startswith(f"{session}/{event}"):
                files.append("kprobe_events", f"-:{place}")
    except OSError as error:
        _log.warning("kernel_timing: events of %s could not be removed: %s", session, error)
