"""The request rows of a trace bundle: checked, duplicates dropped, sorted by arrival."""

import numpy as np
from numpy.typing import NDArray

from kvdiag.errors import InputError, UndeterminedError
from kvdiag.model.bundle import Labels, RequestColumns
from kvdiag.model.transfer import STAGES
from kvdiag.sources._tables import Floats, Table

_TEXTS = ("prefill_node", "decode_node", "direction")
_NUMBERS = (
    "arrival_s",
    "ttft_s",
    *STAGES,
    "prompt_tokens",
    "uncached_tokens",
    "turn",
    "bytes",
    "descriptors",
    "batch_tokens",
    "batch_requests",
)
_CARRIED = ("output_tokens", "trace_id", "evidence", "missing", "sources")
"""Columns that say more of a row and enter no diagnosis."""
_GRANULARITIES = (
    ("kv_wait_s", ("admit_s", "pull_wait_s", "setup_s", "register_s", "handle_s", "post_s", "wire_s")),
    ("pre_transfer_s", ("admit_s", "pull_wait_s", "setup_s", "register_s", "handle_s")),
    ("transfer_s", ("post_s", "wire_s")),
    ("kv_wait_s", ("pre_transfer_s", "transfer_s")),
)
OVERLAP_SLACK = 0.02
"""Stages may exceed TTFT by 2 % plus CLOCK_SLACK_S: the additivity that the trace bundle format promises."""
CLOCK_SLACK_S = 0.005
LEAST_ACCOUNTED = 0.1
"""Where stages make up less than a tenth of the median TTFT, a mixed-up unit is likelier than a real gap."""

LEAST_TOLD = 30
"""Fewer requests may come in one burst, whose TTFT exceeds its length."""
LATEST_ARRIVAL_S = 1e11
"""The year 5138; the epoch in milliseconds lies beyond it."""
LONGEST_S = 1e6
"""A stage or TTFT of more than eleven days is another unit."""


def read_requests(table: Table, notes: list[str]) -> RequestColumns:
    """Return the checked rows; adds to `notes` what was left out; InputError names row and field."""
    if table.rows == 0:
        raise UndeterminedError(f"{table.path}: no request in it: nothing to examine")
    for name in ("request_id", "arrival_s", "ttft_s"):
        if name not in table.names:
            raise InputError(f"{table.path}: no column {name}; it has {', '.join(table.names)}")
    numbers = {name: table.numbers(name) for name in _NUMBERS if name in table.names}
    labels = {name: table.labels(name) for name in _TEXTS if name in table.names}
    unknown = [name for name in table.names if name not in (*_NUMBERS, *_TEXTS, *_CARRIED, "request_id")]
    if unknown:
        notes.append(f"{_file(table)}: column(s) {', '.join(sorted(unknown))} are not known and were not used")
    ids = _ids(table)
    for name, values in numbers.items():
        _refuse_impossible(table, name, values)
    keep = _unique_rows(table, ids, numbers, labels, notes)
    keep &= _with_ttft(table, numbers["ttft_s"], notes)
    _refuse_mixed_granularity(table, numbers)
    _refuse_overlap(table, numbers, keep)
    order = np.argsort(numbers["arrival_s"], kind="stable")
    order = order[keep[order]]
    arrivals = numbers["arrival_s"][order]
    if arrivals.size > 1 and arrivals[0] == arrivals[-1]:
        raise UndeterminedError(
            f"{table.path}: all {arrivals.size} requests have arrival_s {arrivals[0]:g}: without a time there is no "
            "before and after; record each request's own arrival"
        )
    _note_other_unit(table, arrivals, numbers["ttft_s"][order], notes)
    columns = {name: values[order] for name, values in numbers.items()}
    return RequestColumns(
        ids=[ids[row] for row in order.tolist()],
        numbers={name: values for name, values in columns.items() if not np.isnan(values).all()},
        labels={name: Labels(label.names, label.codes[order]) for name, label in labels.items()},
    )


def _file(table: Table) -> str:
    return table.path.name


def _note_other_unit(table: Table, arrivals: Floats, ttft: Floats, notes: list[str]) -> None:
    """Say so where half of the requests waited longer for a token than the whole recording lasted."""
    if arrivals.size < LEAST_TOLD:
        return
    lasted_s, median_s = float(arrivals[-1] - arrivals[0]), float(np.median(ttft))
    if median_s > lasted_s:
        notes.append(
            f"{_file(table)}: half of the {arrivals.size} requests have a ttft_s above {median_s:.4g}, yet all arrived "
            f"within {lasted_s:.4g} s; are ttft_s and the stages in milliseconds? All times of a bundle are in seconds"
        )


def _ids(table: Table) -> list[str]:
    ids: list[str] = []
    for row, text in enumerate(table.texts("request_id")):
        if not text:
            raise InputError(f"{table.place(row)}: request_id is empty")
        ids.append(text)
    return ids


def _refuse_impossible(table: Table, name: str, values: Floats) -> None:
    bad = np.flatnonzero(np.isinf(values) | (values < 0))
    if bad.size:
        row = int(bad[0])
        raise InputError(f"{table.place(row)}: {name} is {values[row]:g}; it must be finite and not negative, or null")
    limit_s = LATEST_ARRIVAL_S if name == "arrival_s" else LONGEST_S if name.endswith("_s") else np.inf
    bad = np.flatnonzero(values > limit_s)
    if bad.size:
        row = int(bad[0])
        raise InputError(
            f"{table.place(row)}: {name} is {values[row]:g}, more than {limit_s:g} seconds; is it in milliseconds or "
            "nanoseconds? All times of a bundle are in seconds"
        )
    if name == "arrival_s" and np.isnan(values).any():
        raise InputError(f"{table.place(int(np.flatnonzero(np.isnan(values))[0]))}: arrival_s is missing")


def _unique_rows(
    table: Table, ids: list[str], numbers: dict[str, Floats], labels: dict[str, Labels], notes: list[str]
) -> NDArray[np.bool_]:
    keep = np.ones(table.rows, dtype=bool)
    if len(set(ids)) == table.rows:
        return keep
    first: dict[str, int] = {}
    for row, text in enumerate(ids):
        earlier = first.setdefault(text, row)
        if earlier == row:
            continue
        same = all(np.array_equal(v[earlier], v[row], equal_nan=True) for v in numbers.values())
        if not (same and all(label.codes[earlier] == label.codes[row] for label in labels.values())):
            raise InputError(
                f"{table.place(row)}: request_id {text!r} is already that of {table.place(earlier)}, "
                "with other values; ids must be unique"
            )
        keep[row] = False
    notes.append(f"{_file(table)}: {int((~keep).sum())} row(s) repeat an earlier row exactly and were dropped")
    return keep


def _with_ttft(table: Table, ttft: Floats, notes: list[str]) -> NDArray[np.bool_]:
    present = ~np.isnan(ttft)
    if not present.any():
        raise UndeterminedError(f"{table.path}: ttft_s is null in every row: nothing to examine")
    if not present.all():
        notes.append(f"{_file(table)}: {int((~present).sum())} row(s) without ttft_s (no first token) were left out")
    return present


def _refuse_mixed_granularity(table: Table, numbers: dict[str, Floats]) -> None:
    """Refuse rows that hold a stage and the sum it is part of: it would count twice."""
    for coarse, fine in _GRANULARITIES:
        if coarse not in numbers:
            continue
        for name in fine:
            if name not in numbers:
                continue
            both = np.flatnonzero(~np.isnan(numbers[coarse]) & ~np.isnan(numbers[name]))
            if both.size:
                place = table.place(int(both[0]))
                raise InputError(f"{place}: {coarse} and {name} are both given, and the first contains the second")


def _refuse_overlap(table: Table, numbers: dict[str, Floats], keep: NDArray[np.bool_]) -> None:
    stages = [numbers[name] for name in STAGES if name in numbers]
    if not stages:
        raise InputError(f"{_file(table)}: no stage column; at least one of {', '.join(STAGES)} is needed")
    total = np.nansum(np.array(stages), axis=0)
    ttft = numbers["ttft_s"]
    bad = np.flatnonzero(keep & (total > ttft * (1 + OVERLAP_SLACK) + CLOCK_SLACK_S))
    if bad.size:
        row = int(bad[0])
        raise InputError(
            f"{table.place(row)}: the stages add up to {total[row]:.6g} s, more than ttft_s = {ttft[row]:.6g} s "
            f"({bad.size} such row(s)); stages must not overlap, all in seconds"
        )
    accounted = float(total[keep].sum() / ttft[keep].sum()) if ttft[keep].sum() > 0 else 1.0
    if accounted < LEAST_ACCOUNTED:
        raise InputError(
            f"{_file(table)}: the stages add up to {accounted:.2%} of ttft_s; are both in seconds? "
            f"(row 1: {total[keep][0]:.6g} s of {ttft[keep][0]:.6g} s)"
        )
