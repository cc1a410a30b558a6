"""Build the application, run it, and end every failure in one line and the documented exit code."""

import errno
import importlib
import os
import pkgutil
import resource
import sys
import traceback
from collections.abc import Sequence

import typer

import kvdiag
import kvdiag.cli
from kvdiag.cli._bad_values import describe
from kvdiag.cli._output import configure_logging, degrade, harmless
from kvdiag.errors import KvdiagError
from kvdiag.model.exit_code import ExitCode

_EPILOG = "Exit codes: " + " · ".join(f"{int(code)} {code.meaning}" for code in ExitCode) + " · 130 or 143 interrupted"

_INTERRUPTED = 130
"""128 + SIGINT, as shells expect; typer turns KeyboardInterrupt into it."""


def build_app() -> typer.Typer:
    """Return the typer application with every command of this folder; imports no optional dependency."""
    app = typer.Typer(
        name="kvdiag",
        help="Why time-to-first-token varies when KV caches move between prefill and decode, proved with numbers.",
        epilog=_EPILOG,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_root)
    for module_info in sorted(pkgutil.iter_modules(kvdiag.cli.__path__), key=lambda info: info.name):
        if not module_info.name.startswith("_"):
            importlib.import_module(f"kvdiag.cli.{module_info.name}").register(app)
    return app


def _root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True),
    verbose: int = typer.Option(0, "--verbose", "-v", count=True, help="Log more to standard error; twice for debug."),
) -> None:
    if version:
        sys.stdout.write(f"kvdiag {kvdiag.__version__}\n")
        raise typer.Exit(0)
    configure_logging(verbose)
    if context.invoked_subcommand is None:
        context.get_help()  # typer's rich help prints itself
        raise typer.Exit(ExitCode.USAGE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (default: of this process) and return the exit code; never lets a traceback out."""
    degrade()
    try:
        result = build_app()(args=arguments, standalone_mode=False, prog_name="kvdiag")
    except KvdiagError as error:
        return _fail(str(error), error.exit_code)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        where = context.command_path if context else _command(arguments)
        return _fail(f"{describe(error)} (see {where} --help)", ExitCode.USAGE)
    except typer.Abort:
        return _fail("interrupted", _INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output went away (`| head`): nothing is left to say, and the interpreter must not say it.
        _silence()
        return ExitCode.PASSED
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            return _fail(f"{error.strerror}: at most {soft} here (ulimit -n); raise it", ExitCode.UNDETERMINED)
        # Files have messages of their own; what has no name is an output.
        if error.errno != errno.ENOSPC or error.filename is not None:
            return _internal(error)
        _silence()
        return _fail(f"standard output: {error.strerror}; make room, or write elsewhere", ExitCode.UNDETERMINED)
    except Exception as error:
        return _internal(error)
    if result == _INTERRUPTED:
        return _fail("interrupted", _INTERRUPTED)
    code = int(result) if isinstance(result, int) else int(ExitCode.PASSED)
    try:
        sys.stdout.flush()
    except OSError as error:
        _silence()
        if not isinstance(error, BrokenPipeError):
            return _fail(f"standard output: {error.strerror}; make room, or write elsewhere", ExitCode.UNDETERMINED)
    return code


def _command(arguments: Sequence[str] | None) -> str:
    """Return whose help to look at where an error does not say."""
    first = next(iter(sys.argv[1:] if arguments is None else arguments), "")
    return f"kvdiag {first}" if first.isalpha() else "kvdiag"


def _silence() -> None:
    """Keep the interpreter from flushing to an output that takes nothing any more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _internal(error: Exception) -> int:
    if os.environ.get("KVDIAG_DEBUG"):
        traceback.print_exception(error)
    return _fail(
        f"internal error: {type(error).__name__}: {error} (a defect in kvdiag; KVDIAG_DEBUG=1 shows where)",
        ExitCode.INTERNAL,
    )


def _fail(text: str, code: int) -> int:
    sys.stderr.write(f"kvdiag: error: {harmless(' '.join(text.split()))}\n")
    return code
