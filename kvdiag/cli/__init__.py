"""The command line: one file per command, each found by walking this folder and registered by its `register`."""

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; a Ctrl-C while Python still loads ends in one line, too."""
    try:
        from kvdiag.cli._main import main as run

        return run(arguments)
    except KeyboardInterrupt:
        sys.stderr.write("kvdiag: error: interrupted\n")
        return 130
