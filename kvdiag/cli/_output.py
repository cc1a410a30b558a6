"""Where output goes: one document to standard output, logs and progress to standard error."""

import logging
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

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


def stdout() -> "Console":
    """Return the console of standard output; plain text where that is not a terminal."""
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, soft_wrap=not sys.stdout.isatty())


def stderr() -> "Console":
    """Return the console of standard error, for progress and notes."""
    from rich.console import Console

    return Console(file=sys.stderr, highlight=False, soft_wrap=not sys.stderr.isatty())


def require(module: str, extra: str, command: str) -> None:
    """Import an optional dependency's module, or raise UndeterminedError that names the extra to install."""
    import importlib

    from kvdiag.errors import UndeterminedError

    try:
        importlib.import_module(module)
    except ImportError as error:
        missing = error.name or module
        raise UndeterminedError(
            f"{command} needs the Python package {missing}, which is not installed: pip install 'kvdiag[{extra}]'"
        ) from error
