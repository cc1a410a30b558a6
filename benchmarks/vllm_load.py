"""Requests to a prefill/decode pair of vLLM, as a proxy in front of it sends them: first prefill, then decode."""

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx
import numpy as np

TIMEOUT_S = 120.0
_TO_PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}
_VOCABULARY = 4000


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: when it arrives (seconds from the start) and its prompt, new in every request."""

    at_s: float
    prompt: list[int]


@dataclass(frozen=True, slots=True)
class Phase:
    """Poisson arrivals for that long; each prompt has one of the lengths (tokens), by chance."""

    seconds: float
    rate: float
    lengths: Sequence[int]


def asks(phases: Sequence[Phase], seed: int) -> list[Ask]:
    """Return the requests of the phases, one after the other."""
    rng = np.random.default_rng(seed)
    found, begin_s = [], 0.0
    for phase in phases:
        for at_s in np.sort(rng.uniform(0, phase.seconds, rng.poisson(phase.rate * phase.seconds))):
            length = int(rng.choice(phase.lengths))
            found.append(Ask(begin_s + float(at_s), rng.integers(0, _VOCABULARY, length).tolist()))
        begin_s += phase.seconds
    return found


def send(
    wanted: Sequence[Ask], prefill: str, decode: str, then: tuple[float, Callable[[], None]] | None = None
) -> list[tuple[float, float]]:
    """Send them all and return (arrival on the clock, TTFT in seconds) of each that was answered.

    `then` is done on the way, so many seconds from the start.
    """
    return asyncio.run(_all(wanted, prefill, decode, then))


async def _all(
    wanted: Sequence[Ask], prefill: str, decode: str, then: tuple[float, Callable[[], None]] | None
) -> list[tuple[float, float]]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    async with httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits) as client:
        begin_s = time.monotonic()

        async def one(ask: Ask) -> tuple[float, float] | None:
            await asyncio.sleep(begin_s + ask.at_s - time.monotonic())
            return await _ask(client, ask, prefill, decode)

        async def fault() -> None:
            if then is not None:
                await asyncio.sleep(begin_s + then[0] - time.monotonic())
                await asyncio.to_thread(then[1])

        *found, _ = await asyncio.gather(*(one(ask) for ask in wanted), fault())
    return [answer for answer in found if answer is not None]


async def _ask(client: httpx.AsyncClient, ask: Ask, prefill: str, decode: str) -> tuple[float, float] | None:
    arrival_s, begin_s = time.time(), time.perf_counter()
    headers = {
        "X-Request-Id": secrets.token_hex(8),
        "traceparent": f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01",
    }
    body = {"model": "tiny", "prompt": ask.prompt, "temperature": 0, "ignore_eos": True}
    first = body | {"max_tokens": 1, "kv_transfer_params": _TO_PREFILL}
    try:
        answer = (await client.post(f"{prefill}/v1/completions", json=first, headers=headers)).raise_for_status()
        second = body | {"max_tokens": 8, "stream": True, "kv_transfer_params": answer.json()["kv_transfer_params"]}
        ttft_s = None
        async with client.stream("POST", f"{decode}/v1/completions", json=second, headers=headers) as stream:
            async for line in stream.aiter_lines():
                if ttft_s is None and line.startswith("data: {") and json.loads(line[6:]).get("choices"):
                    ttft_s = time.perf_counter() - begin_s
    except httpx.HTTPError:
        return None
    return None if ttft_s is None else (arrival_s, ttft_s)
