"""The tables of each view: columns with what they show, in which unit, and how important they are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvdiag.model.top import EngineRow, FindingRow, PairRow, PortRow, QueuePairRow, RegistrationRow, TopDocument
from kvdiag.top import units

Value = float | str | None
CRITICAL, WARNING, GOOD = "bold red", "yellow", "green"


@dataclass(frozen=True, slots=True)
class Column:
    """`get` gives what is sorted by, `show` its text, `style` a colour for the value.

    `rank` 0 is always shown; the greater, the sooner a column is left out where room is short. `descending`: the
    greatest first when sorted by. `idle` gives how much was counted: 0 shows "no traffic" in place of "not observed".
    """

    title: str
    get: Callable[[Any], Value]
    show: Callable[[Any], str] = str
    rank: int = 0
    width: int = 0
    style: Callable[[Any], str] = lambda _: ""
    idle: Callable[[Any], float | None] = lambda _: None

    @property
    def left(self) -> bool:
        return self.show is str

    def text(self, row: object) -> str:
        """Return the cell's text."""
        value = self.get(row)
        if value is None and self.idle(row) == 0:
            return units.NONE
        return self.show(value)


@dataclass(frozen=True, slots=True)
class Table:
    """One kind of rows; `empty` says why there may be none, `order` the column that is sorted by at first."""

    title: str
    columns: tuple[Column, ...]
    rows: Callable[[TopDocument], Sequence[object]]
    empty: str
    order: int | None = None


def arranged(table: Table, document: TopDocument, sort: int | None, reverse: bool, words: str) -> list[Any]:
    """Return the rows that contain all the words, in order; what is not observed comes last whichever way."""
    wanted = words.lower().split()
    rows = [
        row
        for row in table.rows(document)
        if all(any(word in column.text(row).lower() for column in table.columns) for word in wanted)
    ]
    if sort is None and table.order is None:
        return rows[::-1] if reverse else rows
    column = table.columns[(table.order if sort is None else sort) or 0]
    present = [row for row in rows if column.get(row) is not None]
    absent = [row for row in rows if column.get(row) is None]
    present.sort(key=lambda row: _key(column.get(row)), reverse=(not column.left) != reverse)
    return present + absent


def _key(value: Value) -> tuple[int, float, str]:
    return (1, 0.0, value.lower()) if isinstance(value, str) else (0, value or 0.0, "")


def _above(get: Callable[[Any], float | None], warning: float, critical: float) -> Callable[[Any], str]:
    def style(row: object) -> str:
        value = get(row)
        if value is None or value < warning:
            return ""
        return CRITICAL if value >= critical else WARNING

    return style


def _any(get: Callable[[Any], float | None], style: str = WARNING) -> Callable[[Any], str]:
    return lambda row: style if get(row) else ""


def _state(value: Value) -> str:
    return units.UNSEEN if value is None else "up" if value else "down"


def _down(row: Any) -> str:
    return CRITICAL if row.up == 0 else ""


def _column(title: str, name: str, show: Callable[[Any], str], rank: int = 0, **more: Any) -> Column:
    return Column(title, lambda row: getattr(row, name), show, rank, **more)


def _busiest(document: TopDocument) -> Sequence[PortRow]:
    """Return RDMA ports before interfaces, those that lose or damage packets first, then the busiest."""

    def key(row: PortRow) -> tuple[bool, bool, float, str, str, str]:
        busy = max(row.transmit_ratio or 0.0, row.receive_ratio or 0.0)
        sick = bool(row.retransmits_per_s or row.errors_per_s)
        return row.port == "", not sick, -busy, row.node, row.device, row.port

    return sorted(document.ports, key=key)


def _transfers(row: Any) -> float | None:
    transfers: float | None = row.transfers
    return transfers


def _requests(row: PairRow) -> float | None:
    return row.requests_per_s


PAIRS = Table(
    "Pairs",
    (
        Column("prefill", lambda row: row.prefill_node or units.UNSEEN, width=8),
        Column("→ decode", lambda row: f"→ {row.decode_node or units.UNSEEN}", width=8),
        _column("transfer p50", "transfer_p50_s", units.seconds, 2, idle=_transfers),
        _column("p99", "transfer_p99_s", units.seconds, idle=_transfers),
        _column("moved", "bytes_per_s", units.rate, 1),
        _column("TTFT p50", "ttft_p50_s", units.seconds, 3, idle=_requests),
        _column("TTFT p99", "ttft_p99_s", units.seconds, 1, idle=_requests),
        _column("transfer/TTFT", "transfer_share", units.share, 2, idle=_transfers),
        _column("req/s", "requests_per_s", units.per_s, 3),
        _column("failed/s", "failures_per_s", units.per_s, 4, style=_any(lambda row: row.failures_per_s, CRITICAL)),
        _column("way", "direction", str, 6),
    ),
    lambda document: document.pairs,
    "no per-request records: docs/records.md says what to switch on",
    order=3,
)
ENGINES = Table(
    "Engines",
    (
        Column("engine", lambda row: f"{row.node}/{row.engine}", width=14),
        _column("role", "role", str, 4),
        _column("source", "source", str, 3),
        _column("", "up", _state, 2, style=_down),
        _column("transfer p50", "transfer_p50_s", units.seconds, 2, idle=_transfers),
        _column("p99", "transfer_p99_s", units.seconds, idle=_transfers),
        _column("moved", "bytes_per_s", units.rate, 1),
        _column("carried by", "carrier", str, 5, style=lambda row: WARNING if "tcp" in row.carrier else ""),
        _column("TTFT p99", "ttft_p99_s", units.seconds, 4),
        _column("waiting", "waiting", units.count, 3),
        _column("failed/s", "failures_per_s", units.per_s, 1, style=_any(lambda row: row.failures_per_s, CRITICAL)),
        _column("expired/s", "expired_per_s", units.per_s, 5, style=_any(lambda row: row.expired_per_s)),
    ),
    lambda document: document.engines,
    "no exporter is told of an engine: [[engines]] in its configuration",
    order=5,
)
NICS = Table(
    "NICs",
    (
        Column("port", lambda row: f"{row.node} {row.device}{'/' if row.port else ''}{row.port}", width=16),
        _column("", "up", _state, style=_down),
        _column("link", "speed_bytes_per_s", units.bit_rate, 2),
        _column("sent", "transmit_bytes_per_s", units.rate, 2),
        _column("sent/link", "transmit_ratio", units.share, style=_above(lambda row: row.transmit_ratio, 0.8, 0.95)),
        _column("received", "receive_bytes_per_s", units.rate, 2),
        _column("received/link", "receive_ratio", units.share, style=_above(lambda row: row.receive_ratio, 0.8, 0.95)),
        _column("resent/s", "retransmits_per_s", units.per_s, 1, style=_any(lambda row: row.retransmits_per_s)),
        _column(
            "unordered/s", "out_of_sequence_per_s", units.per_s, 4, style=_any(lambda row: row.out_of_sequence_per_s)
        ),
        _column("marked/s", "congestion_per_s", units.per_s, 4, style=_any(lambda row: row.congestion_per_s)),
        _column("paused", "paused_ratio", units.share, 5, style=_above(lambda row: row.paused_ratio, 0.01, 0.1)),
        _column("errors/s", "errors_per_s", units.per_s, 3, style=_any(lambda row: row.errors_per_s, CRITICAL)),
    ),
    _busiest,
    "no port or interface is seen",
)
REGISTRATION = Table(
    "Registration",
    (
        Column("of", lambda row: f"{row.node} {row.subject}", width=16),
        _column("regions", "regions", units.count, 1),
        _column("bytes", "region_bytes", units.size),
        _column("new/s", "registered_per_s", units.per_s, 1, style=_any(lambda row: row.registered_per_s)),
        _column("gone/s", "deregistered_per_s", units.per_s, 3),
        _column("refused/s", "refused_per_s", units.per_s, 4, style=_any(lambda row: row.refused_per_s, CRITICAL)),
        _column("pinned", "pinned_bytes", units.size, 2),
        _column("limit", "pinned_limit_bytes", units.size, 3),
        _column("used", "pinned_ratio", units.share, style=_above(lambda row: row.pinned_ratio, 0.9, 1.0)),
        _column("regions/max", "regions_ratio", units.share, 4, style=_above(lambda row: row.regions_ratio, 0.9, 1.0)),
    ),
    lambda document: document.registration,
    "no memory region is seen: RDMA netlink needs the host's process namespace",
    order=2,
)
QUEUE_PAIRS = Table(
    "Queue pairs",
    (
        Column("of", lambda row: f"{row.node} {row.device} {row.engine}", width=16),
        _column("all", "total", units.count),
        _column("RTS", "ready", units.count, 1),
        _column("ERR", "error", units.count, style=_any(lambda row: row.error, CRITICAL)),
        _column("other", "other", units.count, 3),
        _column("new/s", "created_per_s", units.per_s, 1, style=_any(lambda row: row.created_per_s)),
        _column("gone/s", "gone_per_s", units.per_s, 3),
        _column("of limit", "used_ratio", units.share, 2, style=_above(lambda row: row.used_ratio, 0.9, 1.0)),
        _column("limit", "limit", units.count, 4),
    ),
    lambda document: document.queue_pairs,
    "no queue pair is seen: RDMA netlink needs the host's process namespace",
    order=1,
)


def _grave(row: FindingRow) -> str:
    return {"critical": CRITICAL, "warning": WARNING}.get(row.severity, "")


FINDINGS = Table(
    "Findings",
    (
        _column("severity", "severity", str, style=_grave),
        _column("code", "code", str),
        Column("where", lambda row: " ".join(dict.fromkeys(f"{row.node} {row.subject}".split())), rank=1, width=12),
        Column("what", lambda row: row.summary.removeprefix(f"{row.code} "), rank=2, width=20),
        _column("to do", "action", str, 3, width=20),
    ),
    lambda document: document.findings,
    "nothing found",
)

TABLES = {
    "pairs": PAIRS,
    "engines": ENGINES,
    "NICs": NICS,
    "registration": REGISTRATION,
    "queue pairs": QUEUE_PAIRS,
    "findings": FINDINGS,
}
Rows = PairRow | EngineRow | PortRow | RegistrationRow | QueuePairRow | FindingRow
