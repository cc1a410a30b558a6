"""Joined requests as the columns that a diagnosis looks at."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from kvdiag.derive.stages import PARTS
from kvdiag.model.bundle import Labels, RequestColumns
from kvdiag.model.transfer import STAGES, TransferRecord

_NUMBERS = (
    "arrival_s", "ttft_s", *STAGES, "prompt_tokens", "uncached_tokens", "turn", "bytes", "descriptors", "batch_tokens",
    "batch_requests",
)  # fmt: skip
_TEXTS = ("prefill_node", "decode_node", "direction")
MOSTLY = 0.9
"""Stages that at least so many of the rows have finer than the rest are kept finer, and the rest is left out."""
LATEST_S, LONGEST_S = 1e11, 1e6


def columns_of(records: Sequence[TransferRecord], notes: list[str]) -> RequestColumns | None:
    """Return the rows that have a TTFT and a stage, by arrival; None where none has. Adds to `notes` what was left out.

    All rows get one granularity: where most tell finer stages, the others are left out, else finer ones are added up.
    """
    timed = [one for one in records if one.ttft_s is not None and 0 <= one.ttft_s < LONGEST_S]
    if len(timed) < len(records):
        notes.append(f"{len(records) - len(timed)} request(s) without a first token left out")
    staged = [one for one in timed if any(one.stage(name) is not None for name in STAGES)]
    if len(staged) < len(timed):
        notes.append(f"{len(timed) - len(staged)} request(s) without any stage of TTFT left out")
    rows = sorted(
        (one for one in staged if 0 <= one.arrival_s < LATEST_S), key=lambda one: (one.arrival_s, one.request_id)
    )
    if not rows:
        return None
    numbers = {
        name: np.array([np.nan if (value := getattr(one, name)) is None else value for one in rows], dtype=np.float64)
        for name in _NUMBERS
    }
    keep = _one_granularity(numbers, notes)
    notes += _graded([rows[row] for row in np.flatnonzero(keep).tolist()])
    found = {name: values[keep] for name, values in numbers.items()}
    labels = {}
    for name in _TEXTS:
        codes: dict[str, int] = {}
        texts = [getattr(rows[row], name) for row in np.flatnonzero(keep).tolist()]
        coded = [-1 if text is None else codes.setdefault(text, len(codes)) for text in texts]
        if codes:
            labels[name] = Labels(tuple(codes), np.array(coded, dtype=np.int32))
    return RequestColumns(
        ids=[rows[row].request_id for row in np.flatnonzero(keep).tolist()],
        numbers={name: values for name, values in found.items() if not np.isnan(values).all()},
        labels=labels,
    )


def _graded(rows: Sequence[TransferRecord]) -> list[str]:
    """Say which columns are not plainly measured, and in how many rows."""
    counts = Counter(
        (name, grade) for one in rows for name, grade in one.evidence.items() if getattr(one, name, None) is not None
    )
    if not counts:
        return []
    told = [f"{name} {grade} in {count:,}" for (name, grade), count in sorted(counts.items())]
    return [f"not plainly measured, of {len(rows):,} requests: {', '.join(told)}"]


def _one_granularity(numbers: dict[str, np.ndarray], notes: list[str]) -> np.ndarray:
    """Make the stages of all rows alike in `numbers`, and return which rows are kept."""
    keep = np.ones(len(numbers["arrival_s"]), dtype=bool)
    for coarse in ("pre_transfer_s", "transfer_s", "kv_wait_s"):
        parts = (*PARTS[coarse], *(("pre_transfer_s", "transfer_s") if coarse == "kv_wait_s" else ()))
        has = ~np.isnan(numbers[coarse])
        fine = np.any([~np.isnan(numbers[name]) for name in parts], axis=0) & ~has
        if not (has & keep).any() or not (fine & keep).any():
            continue
        if (fine & keep).sum() >= MOSTLY * ((has | fine) & keep).sum():
            notes.append(
                f"{int((has & keep).sum())} request(s) left out, whose {coarse} is not split as the others' is"
            )
            keep &= ~has
            numbers[coarse] = np.full(len(keep), np.nan)
            continue
        notes.append(
            f"{', '.join(name for name in parts if not np.isnan(numbers[name]).all())} added up to {coarse}, "
            f"as {int((has & keep).sum())} request(s) tell no more"
        )
        total = np.sum([np.nan_to_num(numbers[name]) for name in parts], axis=0)
        numbers[coarse] = np.where(fine, total, numbers[coarse])
        for name in parts:
            numbers[name] = np.full(len(keep), np.nan)
    return keep
