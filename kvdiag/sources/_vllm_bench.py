"""`vllm bench serve --save-result --save-detailed` (0.15.1 to 0.33): arrays with one item per request.

`start_times` are on a monotonic clock of their own. The ids that were sent (`--request-id-prefix` and the number of the
request) are not kept. `--append-result` writes further runs on further lines.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvdiag.errors import InputError, UndeterminedError
from kvdiag.model.request_file import ClientFile, ClientRequest, RequestFile
from kvdiag.sources._json_lines import document

LONGEST_S = 1e6


class _Run(msgspec.Struct):
    ttfts: list[float] | None = None
    input_lens: list[float] | None = None
    output_lens: list[float] | None = None
    start_times: list[float] | None = None
    errors: list[Any] | None = None


def read(path: Path) -> tuple[RequestFile, ...]:
    """Return the runs; InputError where one lacks what `--save-detailed` adds."""
    text = path.read_bytes()
    try:
        try:
            documents = [document(text)]
        except json.JSONDecodeError:
            documents = [document(line) for line in text.splitlines() if line.strip()]
        runs = [msgspec.convert(one, _Run) for one in documents]
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: no result of `vllm bench serve`: {error}") from None
    return tuple(_client(path, f" run {number}" if len(runs) > 1 else "", run) for number, run in enumerate(runs, 1))


def _client(path: Path, where: str, run: _Run) -> ClientFile:
    if run.ttfts is None or run.input_lens is None:
        raise InputError(
            f"{path}{where}: a result without its requests; run `vllm bench serve` again with --save-result "
            "--save-detailed"
        )
    if run.start_times is None:
        raise InputError(
            f"{path}{where}: no start_times in it (vLLM before 0.15.1, or another tool's bench), so its requests have "
            "no place in time"
        )
    count = len(run.ttfts)
    for name in ("input_lens", "start_times", "output_lens", "errors"):
        values = getattr(run, name)
        if values is not None and len(values) != count:
            raise InputError(f"{path}{where}: {name} has {len(values)} items and ttfts {count}; it is cut or mixed up")
    if count == 0:
        raise UndeterminedError(f"{path}{where}: no request in it: nothing to examine")
    bad = next((i for i, one in enumerate(run.ttfts) if not 0 <= one < LONGEST_S), None)
    if bad is not None:
        raise InputError(f"{path}{where}: ttfts[{bad}] is {run.ttfts[bad]:g}; seconds are expected, not negative")
    failed = run.errors or [""] * count
    outputs: Sequence[float | None] = run.output_lens or [None] * count
    requests = tuple(
        # A request that failed before its first token has a TTFT of zero.
        ClientRequest(
            start_s=start, ttft_s=ttft if ttft > 0 and not error else None, prompt_tokens=tokens, output_tokens=output
        )
        for start, ttft, tokens, output, error in zip(
            run.start_times, run.ttfts, run.input_lens, outputs, failed, strict=True
        )
    )
    return ClientFile(
        path=f"{path}{where}", tool="vllm bench serve", requests=requests, wall_clock=False, numbered=True
    )
