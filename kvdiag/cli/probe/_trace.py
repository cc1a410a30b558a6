"""`--trace FILE` of every probe: a timeline of its stages, rounds and sampled operations."""

from collections.abc import Callable
from pathlib import Path

from kvdiag.cli.probe._progress import clear_progress
from kvdiag.cli.probe._stop import stoppable


def traced(command: str, path: Path | None, run: Callable[[], int]) -> int:
    """Run a probe and return its exit code; with a path write what was recorded there, whatever became of the probe.

    UsageError where the file cannot be written; that is tried before the probe begins.
    """
    if path is None:
        return _shown(run)
    from kvdiag.cli._files import check_new, write_whole
    from kvdiag.report.json import head
    from kvdiag.report.trace import MARK, encode
    from kvdiag_probes import tracing

    check_new(path, "--trace", marks=(MARK,))

    def write(text: str) -> None:
        write_whole(path, text, "--trace")

    recorder = tracing.Recorder()
    about = head(f"kvdiag probe {command}")
    about["command"] = about.pop("schema")
    write(encode(recorder.trace(**about)))
    try:
        with tracing.recording(recorder), tracing.span("probe", f"kvdiag probe {command}"):
            return _shown(run)
    finally:
        write(encode(recorder.trace(**about)))


def _shown(run: Callable[[], int]) -> int:
    """Run a probe that Ctrl-C ends as a failure does, and leave no line of progress behind."""
    try:
        with stoppable():
            return run()
    finally:
        clear_progress()
