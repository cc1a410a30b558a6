"""Where output goes: one document to standard output, logs and progress to standard error."""

import logging
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

if TYPE_CHECKING:
    from rich.console import Console


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


FormatOption = Annotated[
    Format, typer.Option("--format", "-f", help="text for people, json for one document on standard output.")
]


def configure_logging(verbosity: int) -> None:
    """Log to standard error: warnings by default, information at 1, debug from 2."""
    level = {0: logging.WARNING, 1: logging.INFO}.get(verbosity, logging.DEBUG)
    logging.basicConfig(stream=sys.stderr, level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def harmless(text: str) -> str:
    r"""Return the text with control characters made visible (`\x1b`): what was read may not steer the terminal."""
    return text.translate(_VISIBLE)


_VISIBLE = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def degrade() -> None:
    """Let a character that an output's encoding lacks become `?`, and an output that is closed take everything.

    A verdict is never lost to a locale, nor an exit code to `>&-`.
    """
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def stdout() -> "Console":
    """Return the console of standard output; plain text where that is not a terminal."""
    return _console(sys.stdout)


def stderr() -> "Console":
    """Return the console of standard error, for progress and notes."""
    return _console(sys.stderr)


def _console(stream: TextIO) -> "Console":
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.segment import Segment

    class Harmless:
        def __init__(self, content: RenderableType) -> None:
            self.content = content

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            for segment in console.render(self.content, options):
                yield segment if segment.control else Segment(harmless(segment.text), segment.style)

    class HarmlessConsole(Console):
        def on_broken_pipe(self) -> None:
            """Print no more: the command goes on to its own exit code (rich's would be 1, a warning here)."""
            self.quiet = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

        def print(self, *objects: Any, **settings: Any) -> None:
            super().print(*(part if isinstance(part, str) else Harmless(part) for part in objects), **settings)

    return HarmlessConsole(file=stream, highlight=False, soft_wrap=not stream.isatty())


def require(module: str, extra: str, command: str) -> None:
    """Import an optional dependency's module, or raise UndeterminedError that names the extra to install.

    One that is installed and does not load (too little memory, a library that it lacks) is called so.
    """
    import importlib

    from kvdiag.errors import UndeterminedError

    try:
        importlib.import_module(module)
    except (ImportError, MemoryError, OSError) as error:
        missing = getattr(error, "name", None) or module
        if not isinstance(error, ModuleNotFoundError):
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            why = next(iter(str(cause).strip().splitlines()), "") or type(cause).__name__
            raise UndeterminedError(
                f"{command} needs the Python package {module}, which is installed and cannot be loaded: {why}; is "
                "there too little memory (ulimit -v), or a library missing?"
            ) from error
        raise UndeterminedError(
            f"{command} needs the Python package {missing}, which is not installed: pip install 'kvdiag[{extra}]'"
        ) from error
