"""One line of a file of pieces: what a plugin inside an engine saw in one step."""

from dataclasses import dataclass

from kvdiag.model.record import HandleTransfer, RequestPiece, WindowRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceLine:
    requests: tuple[RequestPiece, ...] = ()
    transfers: tuple[HandleTransfer, ...] = ()
    windows: tuple[WindowRecord, ...] = ()
