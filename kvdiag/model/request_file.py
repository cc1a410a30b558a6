"""What one file tells of requests: spans of engines, a load generator's own view, or NIXL's telemetry."""

from dataclasses import dataclass

from kvdiag.model.nixl import NixlTransfer
from kvdiag.model.record import HandleTransfer, Key, RequestPiece
from kvdiag.model.transfer import TransferRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanFile:
    """What spans tell of requests; counts of all of them, of those nobody reads, of those without a duration."""

    path: str
    pieces: tuple[RequestPiece | HandleTransfer, ...]
    spans: int
    foreign: int
    invalid: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """One request as who sent it saw it; `ttft_s` is None where no token came, `keys` is empty where no id was kept."""

    start_s: float
    ttft_s: float | None
    keys: tuple[Key, ...] = ()
    prompt_tokens: float | None = None
    output_tokens: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFile:
    """One run of a load generator; `start_s` of its requests is on the wall clock, or on another one of its own.

    `numbered`: the ids that it sent ended in the number of the request, but the file does not hold them.
    """

    path: str
    tool: str
    requests: tuple[ClientRequest, ...]
    wall_clock: bool = True
    numbered: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryFile:
    """A NIXL agent's transfers in the order in which they ended, without time and request; `totals` has only sums."""

    path: str
    agent: str
    transfers: tuple[NixlTransfer, ...] = ()
    totals: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsFile:
    """What an exporter showed of its live window: its newest requests, joined already."""

    path: str
    records: tuple[TransferRecord, ...]
    notes: tuple[str, ...] = ()


RequestFile = SpanFile | ClientFile | TelemetryFile | RecordsFile
