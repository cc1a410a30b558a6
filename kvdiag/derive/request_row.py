"""From the pieces of one request to its row: TTFT and stages that add up, each with how it is known."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvdiag.model.record import HandleTransfer, Key, RequestPiece
from kvdiag.model.transfer import STAGES, Grade, TransferRecord

OVERLAP_SLACK = 0.02
CLOCK_SLACK_S = 0.005
"""Stages may exceed TTFT by 2 % plus 5 ms: what the trace bundle format lets through."""

_FILLED = tuple(
    name for name in RequestPiece.__dataclass_fields__ if name not in ("keys", "source", "side", "error", "evidence")
)
_STAGES = frozenset(STAGES)
_ENDS = ("prefill_end_s", "kv_present_s")
_WORST: tuple[Grade, ...] = ("measured", "derived", "estimated", "absent")


@dataclass(slots=True)
class _Row:
    """Columns being filled, and their grades."""

    values: dict[str, float] = field(default_factory=dict)
    evidence: dict[str, Grade] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def put(self, column: str, value: float | None, grade: Grade = "measured") -> None:
        if value is not None:
            self.values[column] = value
            if grade != "measured":
                self.evidence[column] = grade

    def drop(self, columns: Iterable[str]) -> None:
        for column in columns:
            self.values.pop(column, None)
            self.evidence.pop(column, None)


def request_row(
    pieces: Sequence[RequestPiece], transfers: Sequence[HandleTransfer], expected: str = ""
) -> TransferRecord | None:
    """Return the joined row; `expected` says why no more is waited for. None where nothing gives it a time.

    TTFT is the client's where it told, else from the first side's arrival to the first token at the decode side,
    which compares two hosts' clocks and is "derived". `kv_wait_s` is what lies between the prefill's end and the KV
    cache's presence, also derived; transfers that belong to the request split it into `pre_transfer_s` and
    `transfer_s`, and where register and set-up seconds are known too, into the fine stages.
    """
    sides = _by_side(pieces)
    prefill, decode, client = sides.get("prefill"), sides.get("decode"), sides.get("client")
    alone = sides.get("both")
    first = client or prefill or alone or decode
    starts = [one.start_s for one in (client, prefill, alone, decode) if one is not None and one.start_s is not None]
    starts += [one.start_s for one in transfers if one.start_s is not None]
    if not starts:
        return None
    arrival_s = first.start_s if first is not None and first.start_s is not None else min(starts)
    row = _Row()
    _add_ttft(row, arrival_s, client, prefill or alone, decode or alone)
    _add_stages(row, prefill or alone, decode or alone, pieces, transfers)
    _add_sizes(row, pieces, transfers)
    _keep_additive(row)
    if alone is None:
        for side, one in (("prefill", prefill), ("decode", decode)):
            if one is None:
                row.missing.append(f"nothing from the {side} side{expected and ': ' + expected}")
    everything: list[RequestPiece | HandleTransfer] = [*pieces, *transfers]
    row.missing += [f"{one.source}: {one.error}" for one in everything if one.error]
    keys = [key for one in everything for key in one.keys]
    return TransferRecord(
        request_id=_identity(keys),
        arrival_s=arrival_s,
        prefill_node=_first(one.node for one in (prefill, alone) if one is not None),
        decode_node=_first(one.node for one in (decode, alone) if one is not None),
        direction=_first(one.direction for one in everything),
        trace_id=next((text for kind, text in keys if kind == "trace"), None),
        evidence=row.evidence,
        missing=tuple(dict.fromkeys(row.missing)),
        sources=tuple(dict.fromkeys(one.source for one in everything)),
        **row.values,  # type: ignore[arg-type]
    )


def _by_side(pieces: Sequence[RequestPiece]) -> dict[str, RequestPiece]:
    """Return the first piece of each side; of those that do not tell their side, the earlier one is the prefill."""
    found: dict[str, RequestPiece] = {}
    for one in pieces:
        if one.side is not None and one.side != "part":
            known = found.get(one.side)
            found[one.side] = one if known is None else filled(known, one)
    untold = sorted((one for one in pieces if one.side is None), key=lambda one: one.start_s or 0.0)
    free = [side for side in ("prefill", "decode") if side not in found]
    if len(untold) == 1 and len(free) == 2:
        free = ["both"]
    return found | dict(zip(free, untold, strict=False))


def filled(known: RequestPiece, other: RequestPiece) -> RequestPiece:
    """Return a piece with what only the other one knows, or knows better, added; `known` itself where that is nothing.

    Of two ends known equally well the later one counts: a prefill in chunks has several.
    """
    found: dict[str, Any] = {}
    for name in _FILLED:
        old, new = getattr(known, name), getattr(other, name)
        if new is None or new == old:
            continue
        worse = _rank(known, name) - _rank(other, name)
        if old is None or worse > 0 or (worse == 0 and name in _ENDS and new > old):
            found[name] = new
    if not found:
        return known
    kept = {name: grade for name, grade in known.evidence.items() if name not in found}
    grades = {name: grade for name, grade in other.evidence.items() if name in found}
    return replace(known, **found, evidence={**kept, **grades})


def _rank(piece: RequestPiece, name: str) -> int:
    return _WORST.index(piece.evidence.get(name, "measured"))


def _add_ttft(
    row: _Row,
    arrival_s: float,
    client: RequestPiece | None,
    prefill: RequestPiece | None,
    decode: RequestPiece | None,
) -> None:
    if client is not None and client.first_token_s is not None and client.start_s is not None:
        row.put("ttft_s", client.first_token_s - client.start_s, client.evidence.get("first_token_s", "measured"))
    elif decode is not None and prefill is not None and decode.first_token_s is not None:
        grade = decode.evidence.get("first_token_s", "measured" if decode is prefill else "derived")
        row.put("ttft_s", decode.first_token_s - arrival_s, grade)
    if row.values.get("ttft_s", 0.0) < 0:
        row.missing.append(
            f"ttft_s: the first token would be {-row.values['ttft_s']:.3f} s before the arrival: the clocks of the "
            "nodes are apart"
        )
        row.drop(("ttft_s",))


def _add_stages(
    row: _Row,
    prefill: RequestPiece | None,
    decode: RequestPiece | None,
    pieces: Sequence[RequestPiece],
    transfers: Sequence[HandleTransfer],
) -> None:
    for column in ("queue_s", "prefill_s"):
        if prefill is not None:
            row.put(column, getattr(prefill, column), prefill.evidence.get(column, "measured"))
    if decode is not None and decode is not prefill:  # an engine that is both computes the first token in its prefill
        row.put("first_step_s", decode.first_step_s, decode.evidence.get("first_step_s", "measured"))
    summed = {
        name: [getattr(one, name) for one in pieces if getattr(one, name) is not None]
        for name in ("setup_s", "register_s")
    }
    parts = {name: float(sum(values)) for name, values in summed.items() if values}
    end_s = prefill.prefill_end_s if prefill is not None else None
    present_s = _present_s(decode, transfers) if decode is not None and decode is not prefill else None
    wait_s: float | None = None
    told: Grade = "derived"
    if decode is not None and decode.evidence.get("kv_present_s") == "estimated":
        told = "estimated"
    if end_s is not None and present_s is not None:
        wait_s = present_s - end_s
        if wait_s < 0:
            row.missing.append(
                f"kv_wait_s: the KV cache would be present {-wait_s:.3f} s before the prefill's end: the clocks of the "
                "nodes are apart"
            )
            wait_s = None
    moving_s = _moving_s(transfers, *((end_s, present_s) if wait_s is not None else (None, None)))
    if moving_s is not None and parts:
        for name, value in parts.items():
            row.put(name, value)
        posted_s = min(moving_s, max((one.post_s or 0.0 for one in transfers), default=0.0))
        built_s = max((one.prepare_s or 0.0 for one in transfers), default=0.0)
        if any(one.post_s is not None for one in transfers):
            row.put("post_s", built_s + posted_s)
        row.put("wire_s", moving_s - posted_s)
    elif moving_s is not None and wait_s is not None:
        row.put("transfer_s", min(moving_s, wait_s))
        row.put("pre_transfer_s", max(0.0, wait_s - moving_s), told)
    elif moving_s is not None:
        row.put("transfer_s", moving_s)
    elif wait_s is not None and decode is not None and decode.admit_end_s is not None and end_s is not None:
        _add_decode_waits(row, decode, end_s, end_s + wait_s)
    else:
        row.put("kv_wait_s", wait_s, told)


def _present_s(decode: RequestPiece, transfers: Sequence[HandleTransfer]) -> float | None:
    """Return when the decode side had the KV cache, not before the handles ended that it saw end itself.

    vLLM's queue time begins only where its engine core took the request, so its own end lies too early by as much; the
    first step, which comes after the cache, bounds it from above.
    """
    told_s = decode.kv_present_s
    ends = [
        one.start_s + one.duration_s
        for one in transfers
        if one.start_s is not None and one.duration_s is not None and one.node == decode.node and not one.error
    ]
    if told_s is None or not ends or decode.first_token_s is None or decode.first_step_s is None:
        return told_s
    return max(told_s, min(max(ends), decode.first_token_s - decode.first_step_s))


def _add_decode_waits(row: _Row, decode: RequestPiece, from_s: float, present_s: float) -> None:
    """Split the wait at the decode side's own marks; what passed while the prefill still ran delayed nothing."""
    admitted_s = min(present_s, max(from_s, decode.admit_end_s or from_s))
    ready_s = min(admitted_s, max(from_s, decode.setup_end_s or from_s))
    for column, start_s, end_s in (
        ("setup_s", from_s, ready_s),
        ("admit_s", ready_s, admitted_s),
        ("transfer_s", admitted_s, present_s),
    ):
        row.put(column, end_s - start_s, "derived")


def _moving_s(
    transfers: Sequence[HandleTransfer], from_s: float | None = None, until_s: float | None = None
) -> float | None:
    """Return for how long at least one handle was moving, the longest of them where their starts are not known.

    Only what lies between the two instants counts where they are known: what moved while the prefill still ran
    delayed nothing.
    """
    known = [one for one in transfers if one.duration_s is not None]
    if not known:
        return None
    spans = sorted(
        (one.start_s, one.start_s + one.duration_s)
        for one in known
        if one.start_s is not None and one.duration_s is not None
    )
    if len(spans) < len(known):
        return max(one.duration_s or 0.0 for one in known)
    covered_s, reached_s = 0.0, -math.inf if from_s is None else from_s
    for start_s, end_s in spans:
        end_s = end_s if until_s is None else min(end_s, until_s)
        covered_s += max(0.0, end_s - max(reached_s, start_s))
        reached_s = max(reached_s, end_s)
    return covered_s


def _add_sizes(row: _Row, pieces: Sequence[RequestPiece], transfers: Sequence[HandleTransfer]) -> None:
    for column in ("prompt_tokens", "uncached_tokens", "output_tokens"):
        # Both sides tell the prompt; the decode side's output is the whole one, and only the prefill side computed.
        values = [
            (getattr(one, column), one.evidence.get(column, "measured"))
            for one in pieces
            if getattr(one, column) is not None
        ]
        if values:
            row.put(column, *max(values))
    for column in ("bytes", "descriptors"):
        # A failed handle took time, but brought nothing that counts.
        done = [one for one in transfers if getattr(one, column) is not None and not one.error]
        if done:
            row.put(column, sum(getattr(one, column) for one in done), _worst(done, column))
    if "bytes" not in row.values:
        told = [(one.bytes, one.evidence.get("bytes", "measured")) for one in pieces if one.bytes is not None]
        if told:
            row.put("bytes", *max(told))


def _worst(transfers: Sequence[HandleTransfer], column: str) -> Grade:
    grades: list[Grade] = [one.evidence.get(column, "measured") for one in transfers]
    return max(grades, key=_WORST.index)


def _keep_additive(row: _Row) -> None:
    """Leave out stages that cannot be parts of this TTFT: derived ones first, then all."""
    ttft_s = row.values.get("ttft_s")
    if ttft_s is None:
        return
    limit_s = ttft_s * (1 + OVERLAP_SLACK) + CLOCK_SLACK_S
    for all_of_them in (False, True):
        total_s = sum(value for stage, value in row.values.items() if stage in _STAGES)
        if total_s <= limit_s:
            return
        dropped = [stage for stage in STAGES if stage in row.values and (all_of_them or stage in row.evidence)]
        row.drop(dropped)
        if dropped:
            row.missing.append(
                f"{', '.join(dropped)}: the stages add up to {total_s:.3f} s of a TTFT of {ttft_s:.3f} s: the clocks "
                "of the nodes are apart, or the stages overlap"
            )


def _identity(keys: Sequence[Key]) -> str:
    """Return the request's id; where no source knows one, its trace id or bootstrap room, named as such."""
    named: Mapping[str, str] = dict(reversed(keys))
    if "id" in named:
        return named["id"]
    kind = "trace" if "trace" in named else "room"
    return f"{kind}:{named.get(kind, '')}"


def _first(values: Iterable[str | None]) -> str | None:
    return next((one for one in values if one), None)
