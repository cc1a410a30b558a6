"""The [records] table of the configuration."""

from typing import Annotated

import msgspec
from msgspec import Meta

from kvdiag_exporters.config_types import BaseUrl, Text, split_address


class ForwardConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[records.forward]: the base URL of the other exporter's `otlp_http`, where requests are joined."""

    endpoint: BaseUrl


class RecordsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where spans come in, how long the pieces of a request are waited for, and what happens to joined records.

    The other side is waited for `wait_s`; once both are there, further pieces `settle_s`.

    `otlp_http` and `otlp_grpc` are ADDR:PORT, both with the TLS and for the names and passwords of `web_config`;
    `export` is the base URL of an OTLP/HTTP receiver. The attribution looks at
    the last `window_s` every `attribution_interval_s`; 0 switches it off.
    """

    otlp_http: Text | None = None
    otlp_grpc: Text | None = None
    web_config: Text | None = None
    wait_s: Annotated[float, Meta(ge=1, le=3600)] = 60.0
    settle_s: Annotated[float, Meta(ge=0, le=60)] = 5.5
    export: BaseUrl | None = None
    forward: ForwardConfig | None = None
    window_s: Annotated[float, Meta(ge=60, le=86400)] = 3600.0
    attribution_interval_s: Annotated[float, Meta(ge=0, le=86400)] = 60.0


def otlp_address(field: str, address: str) -> tuple[str, int]:
    """Return host and port of `otlp_http` or `otlp_grpc`; UsageError where it is no ADDR:PORT."""
    return split_address(f"records.{field}", address, "127.0.0.1:4318")
