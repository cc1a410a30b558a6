"""One OpenTelemetry span as the readers see it, and the names by which they place it."""

import importlib
import math
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import kvdiag_exporters.records.spans
from kvdiag.model.record import HandleTransfer, Key, RequestPiece, Side
from kvdiag_exporters.collectors.base import Engine

Attributes = Mapping[str, str | int | float | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Identifiers in hexadecimal, times in seconds of the epoch, `failed` the status text of one that did."""

    name: str
    trace_id: str
    start_s: float
    end_s: float
    scope: str = ""
    attributes: Attributes
    resource: Attributes
    failed: str = ""

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def trace_key(self) -> tuple[Key, ...]:
        return (("trace", self.trace_id),) if self.trace_id else ()

    def number(self, name: str) -> float | None:
        """Return a numeric attribute; None where it is absent, no number, negative or not finite."""
        value = self.attributes.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if 0 <= value < math.inf else None

    def text(self, name: str) -> str | None:
        value = self.attributes.get(name)
        return value if isinstance(value, str) and value else None


class Names:
    """Places a span's sender: the engine that is named as its `service.name`, with its node and side."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = {engine.name: engine for engine in engines}

    def node(self, span: Span) -> str | None:
        """Return the node of the configured engine, else the service's name, else its host."""
        service = span.resource.get("service.name")
        if service in self._engines:
            return self._engines[str(service)].node
        value = service or span.resource.get("host.name")
        return str(value) if value else None

    def side(self, span: Span) -> Side | None:
        """Return the engine's side as configured, else what the service's name says, else None."""
        service = str(span.resource.get("service.name", ""))
        engine = self._engines.get(service)
        if engine is not None and engine.role in ("prefill", "decode"):
            return "prefill" if engine.role == "prefill" else "decode"
        told = [side for side in ("prefill", "decode") if side in service.lower()]
        if len(told) == 1:
            return "prefill" if told[0] == "prefill" else "decode"
        return None


Reader = Callable[[Span, Names], Iterable[RequestPiece | HandleTransfer] | None]


def readers() -> tuple[Reader, ...]:
    """Return the `read` of every file in `spans`, in order; each returns None of a span that is not its own."""
    found = sorted(pkgutil.iter_modules(kvdiag_exporters.records.spans.__path__), key=lambda one: one.name)
    modules = [importlib.import_module(f"kvdiag_exporters.records.spans.{one.name}") for one in found]
    return tuple(module.read for module in modules)
