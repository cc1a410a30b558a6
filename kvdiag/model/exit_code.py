"""The one table of exit codes, shared by every command (monitoring-plugin convention, sysexits above 63)."""

from enum import IntEnum


class ExitCode(IntEnum):
    PASSED = 0
    WARNING = 1
    CRITICAL = 2
    UNDETERMINED = 3
    USAGE = 64
    UNAVAILABLE = 69
    INTERNAL = 70

    @property
    def meaning(self) -> str:
        """One line for the help text."""
        return _MEANING[self]


_MEANING = {
    ExitCode.PASSED: "all passed",
    ExitCode.WARNING: "warning(s)",
    ExitCode.CRITICAL: "critical finding(s), or a threshold missed",
    ExitCode.UNDETERMINED: "could not determine: nothing to measure, no permission, unsupported, or a full disk",
    ExitCode.USAGE: "usage error: flag, argument, file or field",
    ExitCode.UNAVAILABLE: "peer or service unreachable",
    ExitCode.INTERNAL: "internal error in kvdiag",
}
