"""`--trace FILE` of every probe: a timeline of its stages, rounds and sampled operations."""

from collections.abc import Callable
from pathlib import Path


def traced(command: str, path: Path | None, run: Callable[[], int]) -> int:
    """Run a probe and return its exit code; with a path write what was recorded there, whatever became of the probe.

    UsageError where the file cannot be written; that is tried before the probe begins.
    """
    if path is None:
        return run()
    from kvdiag.errors import UsageError
    from kvdiag.report.json import head
    from kvdiag.report.trace import encode
    from kvdiag_probes import tracing

    def write(text: str) -> None:
        try:
            path.write_text(text)
        except OSError as error:
            raise UsageError(f"--trace {path}: {error.strerror}; give a file that can be written") from error

    recorder = tracing.Recorder()
    about = head(f"kvdiag probe {command}")
    about["command"] = about.pop("schema")
    write(encode(recorder.trace(**about)))
    try:
        with tracing.recording(recorder), tracing.span("probe", f"kvdiag probe {command}"):
            return run()
    finally:
        write(encode(recorder.trace(**about)))
