"""Files that tell of requests, told apart by what is in them: OTLP JSON, AIPerf, GuideLLM, vLLM's bench, NIXL."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from kvdiag.errors import InputError, UndeterminedError
from kvdiag.model.request_file import RequestFile
from kvdiag.sources import _aiperf, _guidellm, _live_records, _nixl_telemetry, _otlp_file, _vllm_bench
from kvdiag.sources._json_lines import document

MOST_BYTES = 4 << 30
"""Of a file that is one JSON document: it is read as a whole."""
KNOWN = (
    "what is read: OTLP JSON of spans, AIPerf's profile_export.jsonl, GuideLLM's benchmarks.json, the JSON of "
    "`vllm bench serve --save-detailed`, NIXL telemetry, and the folder of a trace bundle"
)
_ARCHIVES = (".tar", ".tar.zst", ".tar.gz", ".tgz")
_PACKED = {
    b"\x1f\x8b": "gunzip",
    b"\x28\xb5\x2f\xfd": "zstd -d",
    b"BZh": "bunzip2",
    b"PK\x03\x04": "unzip",
    b"\xfd7zXZ": "unxz",
}


def is_bundle(path: Path) -> bool:
    """Whether a folder holds the requests of a trace bundle."""
    return any((path / name).exists() for name in ("requests.jsonl", "requests.parquet"))


def read_request_files(path: Path) -> tuple[RequestFile, ...]:
    """Return what a file, or a folder of NIXL telemetry or of AIPerf, tells of requests.

    InputError (file, line, field) for what cannot be read, UndeterminedError where nothing is in it.
    """
    try:
        if path.is_dir():
            return _folder(path)
        if not path.exists():
            raise InputError(f"{path}: no such file or folder")
        if not path.is_file():
            raise InputError(f"{path}: neither a file nor a folder")
        return _file(path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


def _folder(path: Path) -> tuple[RequestFile, ...]:
    export = path / _aiperf.FILE
    if export.is_file():
        return _file(export)
    found = _nixl_telemetry.read_folder(path)
    if not found:
        within = sorted(one.name for one in path.iterdir() if any(one.glob("requests.*")))
        if within:
            raise InputError(
                f"{path}: holds {len(within)} trace bundles (the exporter's recorder.rotate_s makes one a period); "
                f"name those that are meant, for example {path / within[-1]}"
            )
        raise InputError(
            f"{path}: neither a trace bundle (requests.jsonl or requests.parquet) nor a folder of NIXL telemetry or of "
            "AIPerf (profile_export.jsonl)"
        )
    return found


def _file(path: Path) -> tuple[RequestFile, ...]:
    with path.open("rb") as file:
        head = file.read(64)
    if not head.strip():
        raise UndeterminedError(f"{path}: empty: nothing to examine")
    if path.name.endswith(_ARCHIVES):
        raise InputError(f"{path}: an archive; unpack it first (tar -xf {path.name}) and give the folder")
    for magic, program in _PACKED.items():
        if head.startswith(magic):
            raise InputError(f"{path}: packed; unpack it first ({program} {path.name})")
    if head.startswith(b"PAR1"):
        raise InputError(f"{path}: a Parquet file; of a trace bundle give the folder, of spans their OTLP JSON")
    if head.startswith((b"# HELP", b"# TYPE")):
        raise InputError(f"{path}: one scrape of Prometheus metrics, which has no time; give --prometheus URL instead")
    if b"\0" in head:
        return (_nixl_telemetry.read_file(path),)
    first = _first(path)
    reader = _READERS.get(_shape(first) or "")
    if reader is None:
        _refuse(path, first)
    return reader(path)


def _first(path: Path) -> Any:
    """Return the first line of a file of JSON lines as a value, or the whole of one that is a single document."""
    for _, line in _lines(path):
        try:
            return document(line)
        except (ValueError, RecursionError) as error:
            return _whole(path, str(error))
    return None


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, line


def _whole(path: Path, reason: str) -> Any:
    if path.stat().st_size > MOST_BYTES:
        raise InputError(f"{path}: line 1 is not JSON ({reason}), and the file is too large to be one document")
    try:
        return document(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: neither JSON nor JSON lines ({error}); {KNOWN}") from None


def _shape(first: Any) -> str | None:
    """Return what kind of file begins with this value."""
    if not isinstance(first, dict):
        return None
    if "resourceSpans" in first or "resource_spans" in first:
        return "otlp"
    metadata = first.get("metadata")
    if isinstance(metadata, dict) and "request_start_ns" in metadata:
        return "aiperf"
    if first.get("schema") == _live_records.SCHEMA:
        return "records"
    if isinstance(first.get("benchmarks"), list):
        return "guidellm"
    if "ttfts" in first or ("input_lens" in first and "mean_ttft_ms" in first) or "mean_ttft_ms" in first:
        return "bench"
    return None


def _refuse(path: Path, first: Any) -> NoReturn:
    """Raise what is the matter with JSON that is none of the known files."""
    if isinstance(first, list):
        raise InputError(f"{path}: a list ({len(first)} items), perhaps of Zipkin; {KNOWN}")
    if not isinstance(first, dict):
        raise InputError(f"{path}: begins with {str(first)[:40]!r}, which is no object; {KNOWN}")
    for key, what in _OTHERS.items():
        if key in first:
            raise InputError(f"{path}: {what}")
    names = ", ".join(list(first)[:6])
    raise InputError(f"{path}: JSON of none of the known kinds (its fields: {names[:120]}); {KNOWN}")


_OTHERS = {
    "schema": "a document of kvdiag, not of requests: kvdiag report shows it; give the recording that it was made of",
    "resourceLogs": "OTLP logs; give the file of the traces",
    "resourceMetrics": "OTLP metrics; give the file of the traces, or --prometheus",
    "arrival_s": "requests of a trace bundle; give its folder",
    "data": "perhaps an export of Jaeger; give OTLP JSON (the collector's file exporter writes it)",
    "endpoint_url": "AIPerf's scrapes of the engines' metrics; give its profile_export.jsonl",
    "traceID": "a span of Jaeger; give OTLP JSON (the collector's file exporter writes it)",
}
_READERS = {
    "otlp": _otlp_file.read,
    "aiperf": _aiperf.read,
    "guidellm": _guidellm.read,
    "bench": _vllm_bench.read,
    "records": _live_records.read,
}
