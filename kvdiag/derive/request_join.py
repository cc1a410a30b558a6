"""Files that tell of requests, joined: engines' spans of both sides, the load generator's view, NIXL's transfers."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from kvdiag.derive.in_order import by_size, by_time
from kvdiag.derive.join import Joiner
from kvdiag.derive.request_table import columns_of
from kvdiag.derive.reused_ids import AGAIN, told_apart
from kvdiag.derive.span_clocks import in_step
from kvdiag.errors import UndeterminedError, UsageError
from kvdiag.model.bundle import Bundle, RequestColumns
from kvdiag.model.record import HandleTransfer, Key, RequestPiece
from kvdiag.model.request_file import ClientFile, ClientRequest, RecordsFile, RequestFile, SpanFile, TelemetryFile
from kvdiag.model.transfer import STAGES, Grade, TransferRecord

LEAST_FOUND = 0.5
"""Less than half of a client's requests among the engines' is another run: it is not used."""
_NUMBERED = re.compile(r"(.*?)(\d+)")
MOST_APART_S = 60.0
"""Of requests under one id, a client's is the one that began nearest to it, within that."""
MOST_PATHS = 3


def joined(files: Sequence[RequestFile]) -> Bundle:
    """Return the requests that the files tell of; its notes say how each file was joined.

    UndeterminedError where no file tells a stage of TTFT: a client alone sees only the whole.
    """
    shown = [one for one in files if isinstance(one, RecordsFile)]
    if shown:
        return _live(shown, [one for one in files if not isinstance(one, RecordsFile)])
    spans = [one for one in files if isinstance(one, SpanFile)]
    clients = [one for one in files if isinstance(one, ClientFile)]
    rings = [one for one in files if isinstance(one, TelemetryFile)]
    notes = [note for one in files for note in one.notes]
    notes += [_told(one) for one in spans]
    if not any(one.pieces for one in spans):
        raise UndeterminedError(_without_spans(spans, clients, rings))
    pieces, repeated = told_apart(piece for one in spans for piece in one.pieces)
    if repeated:
        notes.append(f"{repeated:,} id(s) were used by several requests, which their traces tell apart")
    pieces = in_step(pieces, notes)
    engines = _rows(pieces)
    notes += _of_sides(engines)
    seen: set[Key] = set()
    for client in clients:
        found = _client_pieces(client, engines, notes)
        pieces += found
        seen |= {key for piece in found for key in piece.keys}
    for ring in rings:
        pieces += _ring_pieces(ring, engines, notes)
    records = _rows(pieces)
    if seen:
        kept = [one for one in records if _key(one) in seen]
        if len(kept) < len(records):
            notes.append(f"{len(records) - len(kept)} request(s) of the engines that no client's file has left out")
        records = kept
    columns = columns_of(records, notes)
    if columns is None:
        lacks = "; ".join(dict.fromkeys(line for one in records for line in one.missing))
        raise UndeterminedError(
            f"{_paths(files)}: none of {len(records)} request(s) has a TTFT and a stage of it "
            f"({lacks[:200] or _without_times(records)}); give the spans of both sides, prefill and decode"
        )
    return Bundle(origin=_paths(files), requests=columns, notes=tuple(notes))


def _live(shown: Sequence[RecordsFile], others: Sequence[RequestFile]) -> Bundle:
    """Return what exporters showed of their windows, each request once, perhaps as clients saw it."""
    records = {one.request_id: one for file in shown for one in file.records}
    notes = [
        f"{one.path}: {len(one.records):,} requests of an exporter's live window, without its counters" for one in shown
    ]
    columns = columns_of(list(records.values()), notes)
    if columns is None:
        raise UndeterminedError(f"{_paths(shown)}: none of {len(records)} request(s) has a TTFT and a stage of it")
    bundle = Bundle(origin=_paths(shown), requests=columns, notes=tuple(notes))
    return seen_by_clients(bundle, others) if others else bundle


def seen_by_clients(bundle: Bundle, files: Sequence[RequestFile]) -> Bundle:
    """Return a recorded bundle with the clients' TTFT, joined by request id; what no stage covers is unaccounted.

    UsageError for files of other kinds: what a bundle was recorded from is not joined again.
    """
    others = [one for one in files if not isinstance(one, ClientFile)]
    if others:
        raise UsageError(
            f"{others[0].path}: beside a trace bundle only load generators' files are joined; give the others alone"
        )
    ttft = bundle.requests.numbers["ttft_s"].copy()
    known = {request_id: row for row, request_id in enumerate(bundle.requests.ids)}
    keep = np.zeros(len(ttft), dtype=bool)
    notes = list(bundle.notes)
    for client in (one for one in files if isinstance(one, ClientFile)):
        notes += client.notes
        rows = [(known.get(_name(one.keys)), one.ttft_s) for one in client.requests]
        found = [(row, value) for row, value in rows if row is not None and value is not None]
        notes.append(f"{_label(client)}: {len(found):,} of {len(client.requests):,} requests joined by request id")
        if len(found) < LEAST_FOUND * len(client.requests):
            raise UndeterminedError(f"{notes[-1]}: it is not the client of {bundle.origin}")
        for row, value in found:
            keep[row] = True
            ttft[row] = max(ttft[row], value)
    if not keep.all():
        notes.append(f"{int((~keep).sum())} request(s) of the bundle that no client's file has left out")
    requests = bundle.requests
    return replace(
        bundle,
        origin=", ".join((bundle.origin, *(one.path for one in files))),
        requests=RequestColumns(
            ids=[requests.ids[row] for row in np.flatnonzero(keep).tolist()],
            numbers={name: (ttft if name == "ttft_s" else values)[keep] for name, values in requests.numbers.items()},
            labels={name: replace(one, codes=one.codes[keep]) for name, one in requests.labels.items()},
        ),
        notes=tuple(notes),
    )


def _rows(pieces: Iterable[RequestPiece | HandleTransfer]) -> list[TransferRecord]:
    """Join what was recorded before: nothing more will come."""
    joiner = Joiner(math.inf, math.inf, most_open=1 << 62)
    for piece in pieces:
        joiner.add(piece, 0.0)
    return sorted(joiner.drain(), key=lambda one: one.arrival_s)


def _told(one: SpanFile) -> str:
    left = [f"{one.foreign} of other operations"] if one.foreign else []
    left += [f"{one.invalid} without a duration"] if one.invalid else []
    return f"{one.path}: {one.spans:,} spans" + (f", not used {' and '.join(left)}" if left else "")


def _of_sides(rows: Sequence[TransferRecord]) -> list[str]:
    """Say how many requests have both sides, and what the others lack."""
    whole = sum(one.prefill_node is not None and one.decode_node is not None for one in rows)
    line = f"{whole:,} of {len(rows):,} requests joined from prefill to decode"
    for side in ("prefill", "decode"):
        lacking = sum(any(f"nothing from the {side} side" in text for text in one.missing) for one in rows)
        line += f"; {lacking:,} have no {side} span" if lacking else ""
    return [line]


def _client_pieces(client: ClientFile, rows: Sequence[TransferRecord], notes: list[str]) -> list[RequestPiece]:
    """Return the client's view of each request that is among the rows: by id where it has one, else by order."""
    known = {_key(one): one for one in rows}
    namesakes: dict[str, list[TransferRecord]] = {}
    for each in rows:
        namesakes.setdefault(each.request_id.partition(AGAIN)[0], []).append(each)
    named = [(one, row) for one in client.requests if (row := _named(one, namesakes)) is not None]
    total = len(client.requests)
    if len(named) >= LEAST_FOUND * total:
        notes.append(f"{_label(client)}: {len(named):,} of {total:,} requests joined by request id")
        return [_piece(client, one, _key(row), 0.0, "measured") for one, row in named]
    if client.numbered:
        prefix = _prefix(rows, total)
        if prefix is not None:
            found = [(n, one) for n, one in enumerate(client.requests) if ("id", f"{prefix}{n}") in known]
            # The client sent each request just before an engine took it: the least difference is the clocks'.
            shift = min(known["id", f"{prefix}{n}"].arrival_s - one.start_s for n, one in found)
            notes.append(
                f"{_label(client)}: {len(found):,} of {total:,} requests joined by their number, which ends the ids "
                f"{prefix}0 to {prefix}{total - 1}; its clock was put on the engines', so when each began is estimated"
            )
            return [_piece(client, one, ("id", f"{prefix}{n}"), shift, "measured") for n, one in found]
    return _by_order(client, rows, notes)


def _named(one: ClientRequest, namesakes: dict[str, list[TransferRecord]]) -> TransferRecord | None:
    """Return the row of the client's id; of several, the one that began nearest."""
    found = namesakes.get(_name(one.keys), []) or namesakes.get(_name(one.keys).partition(AGAIN)[0], [])
    if len(found) < 2:
        return found[0] if found else None
    nearest = min(found, key=lambda row: abs(row.arrival_s - one.start_s))
    return nearest if abs(nearest.arrival_s - one.start_s) <= MOST_APART_S else None


def _by_order(client: ClientFile, rows: Sequence[TransferRecord], notes: list[str]) -> list[RequestPiece]:
    asked = sorted(client.requests, key=lambda one: one.start_s)
    order = by_time(
        np.array([one.start_s for one in asked]),
        np.array([np.nan if one.prompt_tokens is None else one.prompt_tokens for one in asked]),
        np.array([one.arrival_s for one in rows]),
        np.array([np.nan if one.prompt_tokens is None else one.prompt_tokens for one in rows]),
        same_clock=client.wall_clock,
    )
    if order is None:
        notes.append(
            f"{_label(client)}: not used: its {len(asked):,} requests share no id with the engines', and their order "
            "in time fits none of them"
        )
        return []
    notes.append(
        f"{_label(client)}: {order.matched:,} of {len(asked):,} requests joined by their order in time and prompt "
        "tokens, for no id is shared: whose TTFT is whose is estimated"
    )
    return [
        _piece(client, one, _key(rows[row]), order.shift_s, "estimated")
        for one, row in zip(asked, order.row.tolist(), strict=True)
        if row >= 0
    ]


def _piece(client: ClientFile, one: ClientRequest, key: Key, shift_s: float, grade: Grade) -> RequestPiece:
    start_s = one.start_s + shift_s
    evidence: dict[str, Grade] = {} if grade == "measured" else {"first_token_s": grade, "start_s": grade}
    return RequestPiece(
        keys=(key,),
        source=client.tool if grade == "measured" else f"{client.tool}, by order",
        side="client",
        start_s=start_s,
        first_token_s=None if one.ttft_s is None else start_s + one.ttft_s,
        prompt_tokens=one.prompt_tokens,
        output_tokens=one.output_tokens,
        evidence=evidence,
    )


def _prefix(rows: Sequence[TransferRecord], count: int) -> str | None:
    """Return what precedes the numbers 0 to count - 1 in most of the rows' ids, where one such text does."""
    found: dict[str, set[int]] = {}
    for one in rows:
        match = _NUMBERED.fullmatch(one.request_id)
        if match is not None and len(match[2]) < 10 and int(match[2]) < count and str(int(match[2])) == match[2]:
            found.setdefault(match[1], set()).add(int(match[2]))
    fitting = [prefix for prefix, numbers in found.items() if len(numbers) >= max(LEAST_FOUND * count, 2)]
    return fitting[0] if len(fitting) == 1 else None


def _ring_pieces(ring: TelemetryFile, rows: Sequence[TransferRecord], notes: list[str]) -> list[HandleTransfer]:
    """Return the ring's transfers of the requests, which they follow in order: by sizes that go with prompt tokens."""
    if ring.totals:
        notes.append(f"{ring.path}: agent {ring.agent}: {ring.totals}: totals without times, not joined with requests")
        return []
    if not ring.transfers:
        notes.append(f"{ring.path}: agent {ring.agent} began no transfer: only the initiating side records them")
        return []
    sizes = np.array([one.bytes for one in ring.transfers], dtype=np.float64)
    fitting: list[tuple[list[TransferRecord], list[int]]] = []
    side = "prefill_node" if ring.transfers[0].direction == "write" else "decode_node"
    for node in dict.fromkeys(getattr(one, side) for one in rows if getattr(one, side) is not None):
        own = [one for one in rows if getattr(one, side) == node and one.prompt_tokens]
        own.sort(key=lambda one: one.arrival_s)
        place = by_size(sizes, np.array([one.prompt_tokens for one in own], dtype=np.float64))
        if place is not None:
            fitting.append((own, place.tolist()))
    if len(fitting) != 1:
        notes.append(
            f"{ring.path}: not used: the {len(sizes):,} transfers of agent {ring.agent} carry no request's id, and "
            f"their order by size fits {'no node' if not fitting else 'several nodes'}"
        )
        return []
    own, places = fitting[0]
    notes.append(
        f"{ring.path}: {len(sizes):,} transfers of agent {ring.agent} joined to requests of {getattr(own[0], side)} by "
        "their order and sizes, for they carry no request's id: whose seconds are whose is estimated"
    )
    return [
        HandleTransfer(
            source="nixl ring, by order",
            keys=(_key(own[place]),),
            node=getattr(own[place], side),
            direction="push" if one.direction == "write" else "pull",
            duration_s=one.xfer_s,
            post_s=one.post_s,
            bytes=float(one.bytes),
            evidence={"duration_s": "estimated", "post_s": "estimated", "bytes": "estimated"},
        )
        for one, place in zip(ring.transfers, places, strict=True)
    ]


def _without_times(rows: Sequence[TransferRecord]) -> str:
    timed = sum(one.ttft_s is not None for one in rows)
    staged = sum(any(one.stage(name) is not None for name in STAGES) for one in rows)
    return f"{timed} have a first token, {staged} a stage"


def _without_spans(spans: Sequence[SpanFile], clients: Sequence[ClientFile], rings: Sequence[TelemetryFile]) -> str:
    """Say what there is, and why that is not enough."""
    if spans:
        read = sum(one.spans for one in spans)
        return (
            f"{_paths(spans)}: {read:,} spans, and none of a request of vLLM, SGLang, Dynamo or NIXL; give the traces "
            "of the engines (docs/records.md says how they are switched on)"
        )
    if clients:
        ttft = np.array([one.ttft_s for file in clients for one in file.requests if one.ttft_s is not None])
        seen = f"mean {ttft.mean() * 1e3:.4g} ms, p99 {np.quantile(ttft, 0.99) * 1e3:.4g} ms" if ttft.size else "none"
        return (
            f"{_paths(clients)}: {ttft.size:,} TTFTs of {clients[0].tool} ({seen}), and no stage of them; give the "
            "engines' spans (OTLP JSON) or the exporter's trace bundle beside it"
        )
    return (
        f"{_paths(rings)}: NIXL telemetry of {len(rings)} agent(s) tells transfers without their requests; give the "
        "engines' spans (OTLP JSON) beside it"
    )


def _paths(files: Sequence[RequestFile]) -> str:
    more = f" and {len(files) - MOST_PATHS} more" if len(files) > MOST_PATHS else ""
    return ", ".join(one.path for one in files[:MOST_PATHS]) + more


def _label(client: ClientFile) -> str:
    return f"{client.path} ({client.tool})"


def _key(row: TransferRecord) -> Key:
    kind, separator, text = row.request_id.partition(":")
    if separator and kind in ("trace", "room"):
        return ("trace", text) if kind == "trace" else ("room", text)
    return "id", row.request_id


def _name(keys: Sequence[Key]) -> str:
    return next((text for kind, text in keys if kind == "id"), "")
