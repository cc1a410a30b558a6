"""What is written into the tracing file system to time one function of the kernel."""

from dataclasses import dataclass

from kvdiag_exporters.kernel_calls.calls import Call

ROOM = 2048
"""Rows of each histogram; the kernel takes the memory for all of them at once."""
FULL = ROOM * 3 // 4
"""With so many rows a function's histograms are emptied: threads that have ended keep theirs."""
_RETURNS = 512
"""Calls of one function that may be under way together; the return of one more is not seen."""
_FIRST_ERROR = (1 << 64) - 4095
"""Pointers from here on are errors (MAX_ERRNO in include/linux/err.h)."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One function of a call, timed by a session; the names of all its events begin with `event`.

    A kprobe at the entry keeps the time by thread; one at the return makes of it a synthetic event with the duration,
    which two histograms count: calls that worked by thread and power of two, the others by thread and error.
    """

    session: str
    call: Call
    position: int

    @property
    def function(self) -> str:
        return self.call.functions[self.position]

    @property
    def event(self) -> str:
        return f"{self.session}__{self.call.name}_{self.position}"

    @property
    def kprobes(self) -> tuple[str, str]:
        """Lines of kprobe_events. The return first: of a function that is not there only its error says so."""
        arguments = "".join(f" {name}={argument}" for name, argument, _ in self._extras)
        return (
            f"r{_RETURNS}:{self.session}/{self.event}_out {self.function} ret=$retval:{self._result}",
            f"p:{self.session}/{self.event}_in {self.function}{arguments}",
        )

    @property
    def synthetic(self) -> str:
        """The line of synthetic_events."""
        extras = "".join(f"; {type_} {name}" for name, _, type_ in self._extras)
        return f"{self.event} int pid; u64 ns; {self._result} ret{extras}"

    @property
    def hist(self) -> str:
        """Where both histograms are read, below the instance."""
        return f"events/synthetic/{self.event}/hist"

    @property
    def triggers(self) -> tuple[tuple[str, str], ...]:
        """Trigger files below the instance and what is written there, each after what it refers to."""
        synthetic = f"events/synthetic/{self.event}/trigger"
        entry, back = (f"events/{self.session}/{self.event}_{end}/trigger" for end in ("in", "out"))
        state = "state," if self.call.state else ""
        sums = "ns,bytes" if self.call.size else "ns"
        good, bad = ("<", ">=") if self.call.pointer else ("==", "!=")
        limit = _FIRST_ERROR if self.call.pointer else 0
        kept = "".join(f",{self.event}_{name}={name}" for name, _, _ in self._extras)
        passed = "".join(f",${self.event}_{name}" for name, _, _ in self._extras)
        return (
            (synthetic, f"hist:keys=pid,{state}ns.log2:vals={sums}:size={ROOM} if ret {good} {limit}"),
            (synthetic, f"hist:keys=pid,{state}ret:size={ROOM} if ret {bad} {limit}"),
            (entry, f"hist:keys=common_pid:{self.event}_ts=common_timestamp{kept}:size={ROOM}"),
            (
                back,
                f"hist:keys=common_pid:{self.event}_ns=common_timestamp-${self.event}_ts:size={ROOM}"
                f":onmatch({self.session}.{self.event}_in).{self.event}(common_pid,${self.event}_ns,ret{passed})",
            ),
        )

    @property
    def emptying(self) -> tuple[tuple[str, str], ...]:
        """What is written to empty the histograms, as `triggers`.

        One with a variable cannot be cleared: those of the kprobes are set anew, and meanwhile another trigger has the
        kernel count the returns.
        """
        worked, failed, entry, back = self.triggers
        counting = (back[0], "hist:keys=ret:size=128")
        without = tuple((place, f"!{line}") for place, line in (back, entry))
        return (counting, *without, _cleared(worked), _cleared(failed), entry, back, (counting[0], f"!{counting[1]}"))

    @property
    def _result(self) -> str:
        return "u64" if self.call.pointer else "s32"

    @property
    def _extras(self) -> tuple[tuple[str, str, str], ...]:
        """Name, kprobe argument and type of what else is read at the entry."""
        found = (("bytes", self.call.size), ("state", self.call.state))
        return tuple((name, argument, argument.rpartition(":")[2]) for name, argument in found if argument)


def _cleared(trigger: tuple[str, str]) -> tuple[str, str]:
    place, line = trigger
    head, condition, limit = line.partition(" if ")
    return place, f"{head}:clear{condition}{limit}"
