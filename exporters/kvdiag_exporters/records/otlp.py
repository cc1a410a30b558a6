"""OTLP trace exports in protobuf as spans, and what may be packed around them."""

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from kvdiag.derive.otlp_json import ERROR, MOST_ATTRIBUTES
from kvdiag.errors import InputError
from kvdiag.model.span import Span

MOST_BYTES = 16 << 20
"""Of one export, unpacked: 512 spans, the SDKs' largest batch by default, are about half a megabyte."""


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
    try:
        request = ExportTraceServiceRequest.FromString(body)
    except DecodeError as error:
        raise InputError(f"not an ExportTraceServiceRequest: {error}") from None
    count = sum(len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans)
    return Export(from_request(request), len(body), count)


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
