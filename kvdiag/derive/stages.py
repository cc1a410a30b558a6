"""Stage durations of requests as one matrix whose rows add up to TTFT exactly."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvdiag.model.bundle import RequestColumns
from kvdiag.model.transfer import STAGES

UNACCOUNTED = "unaccounted"
"""The name of the part of TTFT that no recorded stage covers."""
WITHOUT_QUEUE = "ttft_s without queue_s"

PARTS = {
    "kv_wait_s": ("admit_s", "pull_wait_s", "setup_s", "register_s", "handle_s", "post_s", "wire_s"),
    "pre_transfer_s": ("admit_s", "pull_wait_s", "setup_s", "register_s", "handle_s"),
    "transfer_s": ("post_s", "wire_s"),
}
"""Which fine stages a coarser one is the sum of (trace bundle format)."""


@dataclass(frozen=True, slots=True, eq=False)
class StageMatrix:
    """`seconds[i]` holds request i's stages by `names` (the last is UNACCOUNTED) and adds up to `ttft_s[i]`.

    `granularity` is full, typical or coarse; `absent` marks the rows of a stage in which it was null, for the stages
    that have such rows (its time, if any, is in a coarser stage or UNACCOUNTED there).
    """

    names: tuple[str, ...]
    seconds: NDArray[np.float64]
    ttft_s: NDArray[np.float64]
    granularity: str
    absent: dict[str, NDArray[np.bool_]]

    @property
    def gaps(self) -> dict[str, int]:
        """Return in how many rows a stage was null, of the stages of which any was."""
        return {name: int(rows.sum()) for name, rows in self.absent.items()}

    def stage(self, name: str) -> NDArray[np.float64] | None:
        """Return one stage's seconds, or None where the bundle has no such stage."""
        return self.seconds[:, self.names.index(name)] if name in self.names else None

    def known(self, name: str) -> NDArray[np.bool_]:
        """Return the rows in which a stage was recorded."""
        return ~self.absent[name] if name in self.absent else np.ones(len(self.ttft_s), dtype=bool)

    def series(self, name: str) -> NDArray[np.float64]:
        """Return one stage's seconds, or TTFT without its queue where `name` is no stage (WITHOUT_QUEUE)."""
        if name in self.names:
            return self.seconds[:, self.names.index(name)]
        queue = self.stage("queue_s")
        return self.ttft_s if queue is None else self.ttft_s - queue

    def rows(self, chosen: NDArray[np.bool_]) -> "StageMatrix":
        """Return the matrix of some of the rows."""
        absent = {name: rows[chosen] for name, rows in self.absent.items() if rows[chosen].any()}
        return replace(self, seconds=self.seconds[chosen], ttft_s=self.ttft_s[chosen], absent=absent)


def fine_stages(name: str) -> tuple[str, ...]:
    """Return the fine stages that a stage covers: itself, or the parts of a coarser one."""
    return PARTS.get(name, (name,))


def stage_matrix(requests: RequestColumns) -> StageMatrix:
    """Return the stages of every request in seconds, in the order a request passes them."""
    ttft = requests.numbers["ttft_s"]
    passed = (
        "queue_s",
        "prefill_s",
        *(name for name in STAGES if name not in ("queue_s", "prefill_s", "first_step_s")),
    )
    names = tuple(name for name in (*passed, "first_step_s") if name in requests.numbers)
    columns = [requests.numbers[name] for name in names]
    absent = {name: rows for name, column in zip(names, columns, strict=True) if (rows := np.isnan(column)).any()}
    known = np.nan_to_num(np.column_stack(columns), nan=0.0)
    rest = ttft - known.sum(axis=1)
    granularity = (
        "coarse" if "kv_wait_s" in names else "typical" if set(names) & {"transfer_s", "pre_transfer_s"} else "full"
    )
    return StageMatrix(
        names=(*names, UNACCOUNTED),
        seconds=np.column_stack([known, rest]),
        ttft_s=ttft,
        granularity=granularity,
        absent=absent,
    )
