"""Run a program that dies with its parent, in a network namespace of its own where asked.

`python -m kvdiag_probes.demo.tether SIGNAL PARENT [--netns] -- PROGRAM ARGUMENT…`: the namespace has no name, so the
kernel removes it, and the interfaces in it, together with the last process inside; nothing can be left behind.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

PR_SET_PDEATHSIG = 1
CLONE_NEWNS = 0x00020000
CLONE_NEWNET = 0x40000000
MS_REC = 0x4000
MS_SLAVE = 0x80000
CANNOT_ISOLATE = 77


def wrap(program: Sequence[str], *, on_parent_death: signal.Signals, netns: bool = False) -> list[str]:
    """Return the command line that runs `program` tethered to the calling process."""
    flags = ["--netns"] if netns else []
    head = [sys.executable, "-m", __name__, str(int(on_parent_death)), str(os.getpid()), *flags]
    return [*head, "--", *program]


def enter_new_netns() -> None:
    """Move this process into a new, empty network namespace; OSError where that is not allowed.

    /sys shows the interfaces of the namespace it was mounted from, and UCX looks there: it is mounted anew, in a
    mount namespace that ends with the process too.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    _done(libc.unshare(CLONE_NEWNET | CLONE_NEWNS))
    _done(libc.mount(None, b"/", None, MS_REC | MS_SLAVE, None))
    _done(libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None))


def _done(status: int) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def main(arguments: list[str]) -> NoReturn:
    head, program = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(head[0]))
    if os.getppid() != int(head[1]):
        sys.exit(1)
    if "--netns" in head:
        try:
            enter_new_netns()
        except OSError as error:
            sys.stderr.write(f"no network namespace: {error.strerror}\n")
            sys.exit(CANNOT_ISOLATE)
    os.execvp(program[0], program)  # noqa: S606 - replaces this process; no shell is involved


if __name__ == "__main__":
    main(sys.argv[1:])
