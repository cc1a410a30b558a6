"""GuideLLM's benchmarks.json (0.3 to 0.8): requests of each benchmark, times in seconds of the epoch.

It sends no id; `response_id` (since 0.5.4) is the one that the engine answered with.
"""

from pathlib import Path

import msgspec

from kvdiag.derive.request_ids import answer_key
from kvdiag.errors import InputError, UndeterminedError
from kvdiag.model.request_file import ClientFile, ClientRequest, RequestFile
from kvdiag.sources._json_lines import document, seconds_of

LONGEST_MS = 1e9


class _Timings(msgspec.Struct):
    request_start: float | None = None


class _Info(msgspec.Struct):
    timings: _Timings = msgspec.field(default_factory=_Timings)


class _Request(msgspec.Struct):
    response_id: str | None = None
    request_start_time: float | None = None
    start_time: float | None = None
    time_to_first_token_ms: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    info: _Info = msgspec.field(default_factory=_Info)


class _Requests(msgspec.Struct):
    successful: list[_Request] | None = None
    incomplete: list[_Request] | None = None
    errored: list[_Request] | None = None


class _Benchmark(msgspec.Struct):
    requests: _Requests | None = None


class _Report(msgspec.Struct):
    benchmarks: list[_Benchmark]


def read(path: Path) -> tuple[RequestFile, ...]:
    """Return the requests of all benchmarks of the report, in the order of their begin."""
    try:
        report = msgspec.convert(document(path.read_bytes()), _Report)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: no report of GuideLLM: {error}") from None
    found = []
    for number, benchmark in enumerate(report.benchmarks):
        kinds = benchmark.requests or _Requests()
        for kind in ("successful", "incomplete", "errored"):
            for place, request in enumerate(getattr(kinds, kind) or ()):
                one = _client(path, f"benchmarks[{number}].requests.{kind}[{place}]", request)
                if one is not None:
                    found.append(one)
    if not found:
        raise UndeterminedError(
            f"{path}: {len(report.benchmarks)} benchmark(s) of GuideLLM without any request: nothing to examine"
        )
    found.sort(key=lambda one: one.start_s)
    return (ClientFile(path=str(path), tool="GuideLLM", requests=tuple(found)),)


def _client(path: Path, where: str, request: _Request) -> ClientRequest | None:
    """Return the request; None where it was never sent. InputError for times that cannot be."""
    known = (request.request_start_time, request.start_time, request.info.timings.request_start)
    start_s = next((one for one in known if one is not None), None)
    if start_s is None:
        return None
    seconds_of(f"{path}: the start of {where}", start_s, 1.0)
    ttft_ms = request.time_to_first_token_ms
    if ttft_ms is not None and not 0 <= ttft_ms < LONGEST_MS:
        raise InputError(f"{path}: {where}.time_to_first_token_ms is {ttft_ms:g}: no milliseconds of a wait")
    return ClientRequest(
        start_s=start_s,
        ttft_s=None if ttft_ms is None else ttft_ms / 1e3,
        keys=(answer_key(request.response_id),) if request.response_id else (),
        prompt_tokens=request.prompt_tokens,
        output_tokens=request.output_tokens,
    )
