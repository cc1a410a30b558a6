"""The output of a program: run with a time limit when live, read from `commands/NAME.txt` in a copied tree."""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from kvdiag.model.missing import Missing
from kvdiag.sources.base import Context
from kvdiag.sources.tree import Tree

TIMEOUT_S = 10.0
"""Long enough for ucx_info on a node with 16 NICs and 8 GPUs, short enough for a prolog script."""


@dataclass(frozen=True, slots=True)
class Output:
    """`origin` is the program's path, or the file's path as in the tree; `errors` what went to standard error."""

    text: str
    origin: str
    errors: str = ""


def output(
    context: Context, name: str, command: Sequence[str], shows: re.Pattern[str] | None = None
) -> Output | Missing:
    """Return what `command` prints, or why it gave nothing; a failing exit status is a reason too.

    `shows` is found in whatever the program prints: a copied file without it is another file, or an empty one.
    """
    if not context.live:
        path = f"/commands/{name}.txt"
        text = Tree.of(context).read(path)
        if isinstance(text, str):
            if "\0" in text:
                text = Missing(f"{path} is binary, not what a program printed")
            elif not text:
                text = Missing(f"{path} is empty")
            elif shows is not None and not shows.search(text):
                text = Missing(f"{path} holds {text[:40]!r}, not what {command[0] if command else name} prints")
        return text if isinstance(text, Missing) else Output(text, path)
    program = shutil.which(command[0])
    if program is None:
        return Missing(f"{command[0]} is not installed")
    shown = " ".join(command)
    try:
        done = subprocess.run(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        return Missing(f"{shown} did not end within {TIMEOUT_S:.0f} s")
    if done.returncode != 0:
        said = " ".join(done.stderr.decode(errors="replace").split())[:200]
        return Missing(f"{shown} ended with status {done.returncode}: {said or 'it said nothing'}")
    return Output(done.stdout.decode(errors="replace"), program, done.stderr.decode(errors="replace"))
