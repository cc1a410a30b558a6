"""Dynamo's frontend span `http-request`: when the request came, and under which id (ai-dynamo 1.6.1).

Its end is that of the whole answer, so it tells no first token; the engines' own spans in the same trace do.
"""

from collections.abc import Iterable

from kvdiag.derive.span_readers import Names
from kvdiag.model.record import Key, RequestPiece
from kvdiag.model.span import Span

_IDS = ("x-request-id", "x_request_id", "request_id")


def read(span: Span, names: Names) -> Iterable[RequestPiece] | None:  # noqa: ARG001  (every reader has the two)
    """Return the frontend's view of the request."""
    if span.name != "http-request":
        return None
    ids: list[Key] = [("id", text) for name in _IDS if (text := span.text(name)) is not None]
    return (
        RequestPiece(
            keys=(*dict.fromkeys(ids), *span.trace_key),
            source="dynamo span",
            side="client",
            start_s=span.start_s,
            error=span.failed,
        ),
    )
