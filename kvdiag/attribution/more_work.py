"""What is said of the load beside a change that no cause explains."""

from collections.abc import Sequence

import numpy as np

from kvdiag.attribution.causes.base import Load
from kvdiag.attribution.columns import Mechanism

SHIFT = 3.0
"""Mean prompt lengths of two samples differ by chance; three standard errors are chance once in seven hundred."""
LEAST = 1.2
"""Load that grew by a fifth is told."""
_FACTORS = {
    "schedule.prefill_queue": "requests per second",
    "workload.prompt_length": "tokens per request",
}


def more_work(mechanisms: Sequence[Mechanism]) -> str:
    """Return by how much what users asked for grew, where it clearly did, to be added to a sentence; else nothing."""
    grown = [
        f"{one.load.ratio:.2f}× ({_FACTORS[one.cause.id]})"
        for one in mechanisms
        if one.cause.id in _FACTORS and isinstance(one.load, Load) and one.load.ratio > LEAST
        if np.log(one.load.ratio) > SHIFT * one.load.error
    ]
    return f"; work offered to prefill grew to {', '.join(grown)}" if grown else ""
