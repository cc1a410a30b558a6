"""AIPerf's profile_export.jsonl (0.3 to 0.13): one request a line, its id sent as X-Request-ID, times in ns."""

from pathlib import Path
from typing import Any

import msgspec

from kvdiag.derive.request_ids import external_key
from kvdiag.errors import InputError, UndeterminedError
from kvdiag.model.request_file import ClientFile, ClientRequest, RequestFile
from kvdiag.sources._json_lines import decoded_lines, seconds_of

FILE = "profile_export.jsonl"
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}


class _Value(msgspec.Struct):
    value: Any = None
    unit: str = ""


class _Metadata(msgspec.Struct):
    request_start_ns: int | float
    x_request_id: str | None = None
    benchmark_phase: str = "profiling"


class _Record(msgspec.Struct):
    metadata: _Metadata
    metrics: dict[str, _Value] = {}


def read(path: Path) -> tuple[RequestFile, ...]:
    """Return the requests; those that warm up are left out, and those that failed have no first token."""
    notes: list[str] = []
    decoder = msgspec.json.Decoder(_Record)
    requests, warming = [], 0
    for number, record in decoded_lines(path, notes, decoder.decode):
        if record.metadata.benchmark_phase == "warmup":
            warming += 1
            continue
        name = record.metadata.x_request_id
        requests.append(
            ClientRequest(
                start_s=seconds_of(
                    f"{path} line {number}: metadata.request_start_ns", float(record.metadata.request_start_ns), 1e9
                ),
                ttft_s=_seconds(path, number, record.metrics.get("time_to_first_token")),
                keys=(external_key(name),) if name else (),
                prompt_tokens=_count(record, "usage_prompt_tokens", "input_sequence_length"),
                output_tokens=_count(record, "usage_completion_tokens", "output_sequence_length"),
            )
        )
    if warming:
        notes.append(f"{path.name}: {warming} request(s) of the warm-up left out")
    if not requests:
        raise UndeterminedError(f"{path}: no request in it: nothing to examine")
    return (ClientFile(path=str(path), tool="AIPerf", requests=tuple(requests), notes=tuple(notes)),)


def _seconds(path: Path, number: int, value: _Value | None) -> float | None:
    if value is None or value.value is None:
        return None
    scale = _SECONDS.get(value.unit)
    if scale is None or isinstance(value.value, bool) or not isinstance(value.value, int | float) or value.value < 0:
        raise InputError(
            f"{path} line {number}: metrics.time_to_first_token is {value.value!r} {value.unit!r}; a number of "
            f"{', '.join(_SECONDS)} is expected"
        )
    return float(value.value) * scale


def _count(record: _Record, *names: str) -> float | None:
    """Return the first of the counts that is there: the server's own count before the client's tokenizer's."""
    for name in names:
        value = record.metrics.get(name, _Value()).value
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
            return float(value)
    return None
