"""The spans of kvdiag's own NIXL instrumentation (plugins/nixl.py): transfers, and stages that a request waited for."""

from collections.abc import Iterable

from kvdiag.derive.span_readers import Names
from kvdiag.model import nixl_span as nixl
from kvdiag.model.record import HandleTransfer, RequestPiece
from kvdiag.model.span import Span

_SETUP = (nixl.ADD_PEER, nixl.CONNECT, nixl.FETCH)


def read(span: Span, names: Names) -> Iterable[RequestPiece | HandleTransfer] | None:
    """Return a transfer, or the registration or set-up seconds of the request in whose trace they were spent."""
    if span.scope != nixl.SCOPE:
        return None
    if span.name == nixl.TRANSFER:
        return (
            HandleTransfer(
                source="nixl span",
                keys=span.trace_key,
                node=names.node(span),
                peer=span.text(nixl.PEER),
                direction=span.text(nixl.DIRECTION),
                backend=span.text(nixl.BACKEND),
                start_s=span.start_s,
                duration_s=span.duration_s,
                prepare_s=span.number(nixl.PREPARE_S),
                post_s=span.number(nixl.POST_S),
                bytes=span.number(nixl.BYTES),
                descriptors=span.number(nixl.DESCRIPTORS),
                error=span.text("error.type") or span.failed,
            ),
        )
    if span.name == nixl.REGISTER:
        return (RequestPiece(keys=span.trace_key, source="nixl span", side="part", register_s=span.duration_s),)
    if span.name in _SETUP:
        return (RequestPiece(keys=span.trace_key, source="nixl span", side="part", setup_s=span.duration_s),)
    return ()
