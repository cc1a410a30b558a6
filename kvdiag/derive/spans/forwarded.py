"""Pieces that another exporter read on its own node and gives on here, where both sides of a request meet."""

from collections.abc import Iterable

import msgspec

from kvdiag.derive.span_readers import Names
from kvdiag.model import forward_span
from kvdiag.model.piece_line import PieceLine
from kvdiag.model.record import HandleTransfer, RequestPiece
from kvdiag.model.span import Span

_decode = msgspec.json.Decoder(PieceLine).decode


def read(span: Span, _names: Names) -> Iterable[RequestPiece | HandleTransfer] | None:
    """Return the pieces, placed by who read them; ValueError where the span holds none that this version knows."""
    if span.scope != forward_span.SCOPE:
        return None
    line = _decode(span.text(forward_span.PIECES) or "")
    return (*line.requests, *line.transfers)
