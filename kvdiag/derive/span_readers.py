"""Who understands which spans, and the names by which their senders are placed."""

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import kvdiag.derive.spans
from kvdiag.model.record import HandleTransfer, RequestPiece, Side
from kvdiag.model.span import Span


class Placed(Protocol):
    """A configured engine: the `service.name` of its spans, its node, and prefill, decode or both."""

    @property
    def name(self) -> str: ...
    @property
    def node(self) -> str: ...
    @property
    def role(self) -> str: ...


class Names:
    """Places a span's sender: the engine that is named as its `service.name`, with its node and side."""

    def __init__(self, engines: Sequence[Placed]) -> None:
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
    found = sorted(pkgutil.iter_modules(kvdiag.derive.spans.__path__), key=lambda one: one.name)
    modules = [importlib.import_module(f"kvdiag.derive.spans.{one.name}") for one in found]
    return tuple(module.read for module in modules)
