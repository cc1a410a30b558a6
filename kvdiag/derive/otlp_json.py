"""OTLP trace exports in JSON as spans; identifiers are hexadecimal (OTLP 1.x, JSON mapping)."""

import binascii
from collections.abc import Iterator

import msgspec

from kvdiag.errors import InputError
from kvdiag.model.span import Span

LEAST_SPAN_BYTES = 24
"""A trace's identifier and its own."""
FEW_SPANS = 1000
MOST_ATTRIBUTES = 256
"""Of one span or resource that are read."""
ERROR = 2  # Status.StatusCode.STATUS_CODE_ERROR


class _Value(msgspec.Struct):
    stringValue: str | None = None  # noqa: N815  (as on the wire)
    intValue: int | str | None = None  # noqa: N815
    doubleValue: float | str | None = None  # noqa: N815
    boolValue: bool | None = None  # noqa: N815


class _Pair(msgspec.Struct):
    key: str = ""
    value: _Value = msgspec.field(default_factory=_Value)


class _Status(msgspec.Struct):
    code: int | str = 0
    message: str = ""


class _Scope(msgspec.Struct):
    name: str = ""


class _Span(msgspec.Struct, rename="camel"):
    name: str = ""
    trace_id: str = ""
    start_time_unix_nano: int | str = 0
    end_time_unix_nano: int | str = 0
    attributes: list[_Pair] = []
    status: _Status = msgspec.field(default_factory=_Status)


class _ScopeSpans(msgspec.Struct, rename="camel"):
    scope: _Scope = msgspec.field(default_factory=_Scope)
    spans: list[_Span] = []


class _Resource(msgspec.Struct):
    attributes: list[_Pair] = []


class _ResourceSpans(msgspec.Struct, rename="camel"):
    resource: _Resource = msgspec.field(default_factory=_Resource)
    scope_spans: list[_ScopeSpans] = []


class _Request(msgspec.Struct, rename="camel"):
    resource_spans: list[_ResourceSpans] = []


_DECODER = msgspec.json.Decoder(_Request)


def check_count(spans: int, size_bytes: int) -> None:
    """Raise InputError where so many spans are in so few bytes that they can only be empty: made to use up memory."""
    if spans > FEW_SPANS and spans * LEAST_SPAN_BYTES > size_bytes:
        raise InputError(f"{spans} spans in {size_bytes} bytes: a span has at least its identifiers")


def from_json(body: bytes) -> Iterator[Span]:
    """Yield the spans of a request in OTLP's JSON; InputError names the field that is not as it should be.

    Unlike protobuf's own JSON mapping it has hexadecimal identifiers; 64-bit integers are texts or numbers.
    """
    try:
        request = _DECODER.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InputError(f"not an ExportTraceServiceRequest in JSON: {error}") from None
    check_count(sum(len(scope.spans) for one in request.resource_spans for scope in one.scope_spans), len(body))
    for resource_spans in request.resource_spans:
        resource = _json_attributes(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                yield _json_span(span, scope_spans.scope.name, resource)


def _json_span(span: _Span, scope: str, resource: dict[str, str | int | float | bool]) -> Span:
    try:
        binascii.unhexlify(span.trace_id)
        start_s, end_s = int(span.start_time_unix_nano) / 1e9, int(span.end_time_unix_nano) / 1e9
        attributes = _json_attributes(span.attributes)
    except (ValueError, OverflowError) as error:
        raise InputError(f"span {span.name!r}: {error}; identifiers are hexadecimal, times whole nanoseconds") from None
    failed = span.status.code in (ERROR, "STATUS_CODE_ERROR")
    return Span(
        name=span.name,
        trace_id=span.trace_id.lower(),
        start_s=start_s,
        end_s=end_s,
        scope=scope,
        attributes=attributes,
        resource=resource,
        failed=(span.status.message or "error") if failed else "",
    )


def _json_attributes(pairs: list[_Pair]) -> dict[str, str | int | float | bool]:
    found: dict[str, str | int | float | bool] = {}
    for pair in pairs[:MOST_ATTRIBUTES]:
        value = pair.value
        if value.stringValue is not None:
            found[pair.key] = value.stringValue
        elif value.intValue is not None:
            found[pair.key] = int(value.intValue)
        elif value.doubleValue is not None:
            found[pair.key] = float(value.doubleValue)
        elif value.boolValue is not None:
            found[pair.key] = value.boolValue
    return found
