"""Runs kvdiag with a wall clock that a file moves: python -m tests.exporters.chaos.launch OFFSET_FILE ARGUMENTS…

The file holds one little-endian double, the seconds by which the clock is off.
"""

import mmap
import struct
import sys
import time
from pathlib import Path


def main() -> int:
    """Run the command line with the moved clock."""
    offset_file, arguments = sys.argv[1], sys.argv[2:]
    with Path(offset_file).open("r+b") as file:
        held = mmap.mmap(file.fileno(), 8)
    right_s, right_ns = time.time, time.time_ns

    def offset_s() -> float:
        return float(struct.unpack("<d", held[:8])[0])

    time.time = lambda: right_s() + offset_s()
    time.time_ns = lambda: right_ns() + int(offset_s() * 1e9)
    from kvdiag.cli import main as command

    return command(arguments)


if __name__ == "__main__":
    sys.exit(main())
