"""The exception tree: every error that a user can cause or meet, and the exit code it ends in.

KvdiagError              70  a defect in kvdiag
├── UsageError           64  a wrong flag, argument, environment variable or configuration field
├── InputError           64  a file or message that cannot be read as what it should be
├── UnavailableError     69  a peer or service that cannot be reached or refuses
├── UndeterminedError     3  nothing to measure, no permission, or unsupported here
└── StoppedError        130  Ctrl-C, where something measured before it is worth keeping; SIGTERM 143, SIGHUP 129
"""


class KvdiagError(Exception):
    """Base of the tree; its text is one line for a person: what is wrong, the value that shows it, what to do."""

    exit_code: int = 70


class UsageError(KvdiagError):
    exit_code = 64


class InputError(KvdiagError):
    exit_code = 64


class UnavailableError(KvdiagError):
    exit_code = 69


class UndeterminedError(KvdiagError):
    exit_code = 3


class StoppedError(KvdiagError):
    """`number` is that of the signal: shells expect 128 more as exit code."""

    def __init__(self, text: str, number: int = 2) -> None:
        super().__init__(text)
        self.exit_code = 128 + number
