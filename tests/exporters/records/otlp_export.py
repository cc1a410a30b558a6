"""Recorded spans as the OTLP exports that carried them."""

import json
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

FIXTURES = Path(__file__).parents[2] / "fixtures/records"
SPANS = FIXTURES / "vllm-0.32-spans.jsonl"
PROXY = FIXTURES / "vllm-0.32-proxy.jsonl"


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _pairs(values: dict[str, Any]) -> list[KeyValue]:
    def value(one: Any) -> AnyValue:
        if isinstance(one, bool):
            return AnyValue(bool_value=one)
        if isinstance(one, int):
            return AnyValue(int_value=one)
        return AnyValue(double_value=one) if isinstance(one, float) else AnyValue(string_value=one)

    return [KeyValue(key=key, value=value(one)) for key, one in values.items()]


def request(spans: list[dict[str, Any]]) -> ExportTraceServiceRequest:
    """Return one export of all spans, each below its resource and scope."""
    export = ExportTraceServiceRequest()
    for one in spans:
        resource = export.resource_spans.add()
        resource.resource.attributes.extend(_pairs(one["resource"]))
        scope = resource.scope_spans.add()
        scope.scope.name = one["scope"]
        scope.spans.add(
            name=one["name"],
            trace_id=bytes.fromhex(one["trace_id"]),
            span_id=bytes.fromhex(one["span_id"]),
            start_time_unix_nano=one["start"],
            end_time_unix_nano=one["end"],
            attributes=_pairs(one["attributes"]),
        )
    return export


def json_request(spans: list[dict[str, Any]]) -> bytes:
    """Return the same in OTLP's JSON: hexadecimal identifiers, 64-bit numbers as text."""

    def pairs(values: dict[str, Any]) -> list[dict[str, Any]]:
        def value(one: Any) -> dict[str, Any]:
            if isinstance(one, int):
                return {"intValue": str(one)}
            return {"doubleValue": one} if isinstance(one, float) else {"stringValue": one}

        return [{"key": key, "value": value(one)} for key, one in values.items()]

    return json.dumps(
        {
            "resourceSpans": [
                {
                    "resource": {"attributes": pairs(one["resource"])},
                    "scopeSpans": [
                        {
                            "scope": {"name": one["scope"]},
                            "spans": [
                                {
                                    "name": one["name"],
                                    "traceId": one["trace_id"],
                                    "spanId": one["span_id"],
                                    "kind": one["kind"],
                                    "startTimeUnixNano": str(one["start"]),
                                    "endTimeUnixNano": str(one["end"]),
                                    "attributes": pairs(one["attributes"]),
                                    "status": {},
                                }
                            ],
                        }
                    ],
                }
                for one in spans
            ]
        }
    ).encode()
