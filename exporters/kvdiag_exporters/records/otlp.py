"""OTLP trace exports in protobuf as spans, and what may be packed around them."""

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from kvdiag.derive.otlp_json import ERROR, MOST_ATTRIBUTES, check_count
from kvdiag.errors import InputError
from kvdiag.model.span import Span

MOST_BYTES = 8 << 20
"""Of one export, unpacked: 512 spans, the SDKs' largest batch by default, are 0.2 to 0.5 MB, 8192 of a collector 3 MB.
Decoded, messages without content take up to 40 times their size."""


UNCOUNTED_BYTES = 1 << 20
"""Up to this size a message is decoded before a look at how many spans it holds: 90 MiB at most, for a moment."""
_RESOURCE_SPANS, _SCOPE_SPANS, _SPANS = 0x0A, 0x12, 0x12
"""Tags (number and type) of TracesData.resource_spans, ResourceSpans.scope_spans and ScopeSpans.spans."""


@dataclass(frozen=True, slots=True)
class Export:
    """Spans of one export, read as they are asked for: `count` of them, in a message of so many bytes."""

    spans: Iterable[Span]
    size: int
    count: int

    def __iter__(self) -> Iterator[Span]:
        return iter(self.spans)


def unpack(body: bytes, encoding: str, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the body without its content coding; InputError where it is unknown, broken or unpacks to too much."""
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "deflate"):
        raise InputError(f"content-encoding is {encoding!r}; send gzip, deflate or none")
    machine = zlib.decompressobj(wbits=31 if encoding == "gzip" else 15)
    try:
        plain = machine.decompress(body, most_bytes)
    except zlib.error as error:
        raise InputError(f"content-encoding is {encoding}, but the body is not: {error}") from None
    if machine.unconsumed_tail:
        raise InputError(f"the body unpacks to more than {most_bytes} bytes; send smaller batches")
    if not machine.eof:
        raise InputError(f"content-encoding is {encoding}, but the body is cut off")
    return plain


def from_protobuf(body: bytes) -> Export:
    """Return the spans of an ExportTraceServiceRequest; InputError where the bytes are none."""
    if len(body) > UNCOUNTED_BYTES:
        check_count(_spans_in(body), len(body))
    try:
        request = ExportTraceServiceRequest.FromString(body)
    except DecodeError as error:
        raise InputError(f"not an ExportTraceServiceRequest: {error}") from None
    count = sum(len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans)
    check_count(count, len(body))
    return Export(from_request(request), len(body), count)


def _spans_in(body: bytes) -> int:
    """Return how many spans are in a message, without decoding them: an empty one takes 87 times its size in memory."""
    return sum(
        1
        for resource in _messages(memoryview(body), _RESOURCE_SPANS)
        for scope in _messages(resource, _SCOPE_SPANS)
        for _ in _messages(scope, _SPANS)
    )


def _messages(data: memoryview, tag: int) -> Iterator[memoryview]:
    """Yield the fields of a message that have this tag; what is broken ends it, and is told by the decoder."""
    at, end = 0, len(data)
    while at < end:
        kind = data[at]
        size, at = _number(data, at + 1)
        wire = kind & 7
        if kind >= 0x80 or wire not in (0, 2) or size < 0:  # of numbers above 15 and other types OTLP has none here
            return
        if wire == 2:
            if kind == tag:
                yield data[at : at + size]
            at += size


def _number(data: memoryview, at: int) -> tuple[int, int]:
    """Return a varint and where the next byte is; -1 where it has no end."""
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    return -1, len(data)


def from_request(request: Any) -> Iterator[Span]:
    """Yield the spans of a decoded request, without links and events."""
    for resource_spans in request.resource_spans:
        resource = _attributes(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                yield Span(
                    name=span.name,
                    trace_id=span.trace_id.hex(),
                    start_s=span.start_time_unix_nano / 1e9,
                    end_s=span.end_time_unix_nano / 1e9,
                    scope=scope_spans.scope.name,
                    attributes=_attributes(span.attributes),
                    resource=resource,
                    failed=(span.status.message or "error") if span.status.code == ERROR else "",
                )


def _attributes(pairs: Any) -> dict[str, str | int | float | bool]:
    """Return the plain values; lists, maps and bytes are left out."""
    found: dict[str, str | int | float | bool] = {}
    for pair in pairs[:MOST_ATTRIBUTES]:
        kind = pair.value.WhichOneof("value")
        if kind in ("string_value", "int_value", "double_value", "bool_value"):
            found[pair.key] = getattr(pair.value, kind)
    return found
