"""What the demo serves: a model's KV geometry, mixed prompt lengths, and arrivals that do not wait for answers."""

import math
import random
from dataclasses import dataclass

LAYERS = 8
SLOT_BYTES = 1024
"""KV bytes of one token in one layer (one KV head of 128 values, K and V, in 4 bytes each)."""
POOL_TOKENS = 8192
POOL_BYTES = POOL_TOKENS * LAYERS * SLOT_BYTES
TOKEN_BYTES = LAYERS * SLOT_BYTES

PREFILL_BASE_S = 0.012
PREFILL_PER_TOKEN_S = 60e-6
FIRST_STEP_S = 0.010

_MIX = ((24, 64, 256), (12, 256, 800), (4, 800, 1600))
"""(requests in a deck, fewest tokens, most tokens): chat turns, documents, long documents; 370 tokens on average."""
_DECK = sum(count for count, _, _ in _MIX)


@dataclass(frozen=True, slots=True)
class Request:
    """`offset_s` is the arrival after the start of the run."""

    number: int
    offset_s: float
    tokens: int

    @property
    def prefill_s(self) -> float:
        """Compute time of the simulated accelerator: linear in the prompt."""
        return PREFILL_BASE_S + PREFILL_PER_TOKEN_S * self.tokens


def draw(seed: int, rate: float, duration_s: float, surge: float = 1.0, scale: float = 1.0) -> tuple[Request, ...]:
    """Return arrivals at `rate` per second over `duration_s` seconds, `surge` times as many in the second half.

    The same for the same arguments, and the first half for any `surge`. `scale` multiplies the prompts' lengths.

    Gaps are exponential and lengths mixed, both dealt from shuffled decks of evenly spaced quantiles: any two stretches
    of some seconds carry the same load in another order, so that what differs between them is not the workload.
    """
    rng = random.Random(seed)  # noqa: S311 - a workload, not a secret
    requests: list[Request] = []
    offset_s = 0.0
    while True:
        for gap_s, tokens in zip(_gaps(rng, rate), _lengths(rng), strict=True):
            offset_s += gap_s / (surge if offset_s >= duration_s / 2 else 1)
            if offset_s >= duration_s:
                return tuple(requests)
            requests.append(Request(len(requests), offset_s, max(1, round(tokens * scale))))


def _gaps(rng: random.Random, rate: float) -> list[float]:
    quantiles = [-math.log(1 - (index + rng.random()) / _DECK) for index in range(_DECK)]
    scale = _DECK / sum(quantiles) / rate
    gaps = [quantile * scale for quantile in quantiles]
    rng.shuffle(gaps)
    return gaps


def _lengths(rng: random.Random) -> list[int]:
    lengths = [
        round(fewest + (most - fewest) * (index + rng.random()) / count)
        for count, fewest, most in _MIX
        for index in range(count)
    ]
    rng.shuffle(lengths)
    return lengths
