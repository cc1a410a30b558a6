"""Runs `kvdiag probe` again and again in one process: each line of standard input holds one run's arguments.

Each run answers with one line of JSON. It spares an emulated CPU the ten seconds that Python's imports take. A line
that begins with "unrecorded" is run without recording any completion.
"""

import contextlib
import io
import json
import shlex
import sys

from kvdiag.cli import main
from kvdiag_probes.posting import ChainedPass


def run(line: str) -> str:
    """Return one answer: exit code, standard output and standard error."""
    arguments = shlex.split(line)
    ChainedPass.recording = arguments[0] != "unrecorded"
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(["probe", *arguments[0 if ChainedPass.recording else 1 :]])
    return json.dumps({"rc": code, "stdout": out.getvalue(), "stderr": err.getvalue()})


if __name__ == "__main__":
    for given in sys.stdin:
        print(run(given), flush=True)
