"""OpenTelemetry instrumentation of the NIXL Python API: `opentelemetry-instrument`, or NixlInstrumentor().instrument().

A transfer is one span from its post until it is seen complete, in the trace that was active at the post, else at its
preparation. Nothing here raises into the engine, waits, or keeps more than MOST_REQUESTS requests.
"""

import functools
import logging
import time
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import wrapt
from opentelemetry import context as contexts
from opentelemetry import metrics, trace
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]
from opentelemetry.trace import SpanKind, Status, StatusCode

import kvdiag
from kvdiag.model import nixl_span as names
from kvdiag_exporters.plugins.nixl_sizes import PreparedLists, lengths

_log = logging.getLogger(__name__)
T = TypeVar("T")
_MODULES = ("nixl_cu12._api", "nixl_cu13._api", "nixl._api")
"""Where the class lives; `nixl` gives the one of the installed CUDA version again."""
MOST_REQUESTS = 16_384
"""Prepared transfers that are remembered; of those beyond, the oldest are no longer told of."""
_DIRECTIONS = {"WRITE": "push", "READ": "pull"}


class _Request:
    """A prepared transfer: what it moves, and of the post in progress its span and times."""

    __slots__ = ("attributes", "context", "posted_s", "span", "start_s")

    def __init__(self, attributes: dict[str, Any], context: Any) -> None:
        self.attributes, self.context = attributes, context
        self.span: Any = None
        self.start_s = self.posted_s = 0.0


class NixlInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Wraps `nixl_agent` of every NIXL package, also one that is imported later."""

    def instrumentation_dependencies(self) -> Collection[str]:
        # Any of nixl, nixl-cu12 and nixl-cu13 will do, which a list of requirements cannot say.
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        tracer = trace.get_tracer(names.SCOPE, kvdiag.__version__, kwargs.get("tracer_provider"))
        meter = metrics.get_meter(names.SCOPE, kvdiag.__version__, kwargs.get("meter_provider"))
        self._patch: _Patch | None = _Patch(tracer, meter)
        for name in _MODULES:
            wrapt.register_post_import_hook(self._apply, name)

    def _apply(self, module: Any) -> None:
        if self._patch is not None:
            self._patch.apply(getattr(module, "nixl_agent", None))

    def _uninstrument(self, **kwargs: Any) -> None:  # noqa: ARG002  (the base class gives them)
        if self._patch is not None:
            self._patch.undo()
        self._patch = None


class _Patch:
    """The wrapped methods, what they measure with, and what they remember."""

    def __init__(self, tracer: Any, meter: Any) -> None:
        self._tracer = tracer
        self._requests: dict[Any, _Request] = {}
        self._lists = PreparedLists(MOST_REQUESTS)
        self._untold: set[str] = set()
        self._undo: list[tuple[type, str, Any]] = []
        self._duration = meter.create_histogram(
            "nixl.transfer.duration", unit="s", description="From the post of a transfer until it was seen complete."
        )
        self._moved = meter.create_counter("nixl.transfer.io", unit="By", description="Bytes of completed transfers.")
        self._descriptors = meter.create_counter(
            "nixl.transfer.descriptors", unit="{descriptor}", description="Descriptors of completed transfers."
        )
        self._registered = meter.create_up_down_counter(
            "nixl.memory.registered", unit="By", description="Registered bytes."
        )
        self._operation = meter.create_histogram(
            "nixl.operation.duration", unit="s", description="Of register, deregister, handshake and preparation calls."
        )

    def apply(self, agent: type | None) -> None:
        """Wrap the methods that this version has; a class that is wrapped already stays as it is."""
        if agent is None or any(owner is agent for owner, _, _ in self._undo):
            return
        for method, wrap in (
            ("register_memory", self._memory(names.REGISTER, 1)),
            ("deregister_memory", self._memory(names.DEREGISTER, -1)),
            ("add_remote_agent", self._timed(names.ADD_PEER)),
            ("fetch_remote_metadata", self._timed(names.FETCH)),
            ("make_connection", self._timed(names.CONNECT)),
            ("prep_xfer_dlist", self._prepare_list),
            ("initialize_xfer", self._prepare),
            ("make_prepped_xfer", self._prepare),
            ("transfer", self._transfer),
            ("check_xfer_state", self._check),
            ("release_xfer_handle", self._release),
        ):
            original = agent.__dict__.get(method)
            if original is not None:
                setattr(agent, method, functools.wraps(original)(wrap(original)))
                self._undo.append((agent, method, original))

    def undo(self) -> None:
        for owner, method, original in self._undo:
            setattr(owner, method, original)
        self._undo.clear()
        self._requests.clear()

    def _call(self, name: str, attributes: Callable[[], dict[str, Any]], call: Callable[[], Any]) -> Any:
        """Make one call inside a span, and count its time; attributes are asked for after it."""
        start_s = time.perf_counter()
        error = ""
        with self._tracer.start_as_current_span(name, kind=SpanKind.CLIENT) as span:
            try:
                return call()
            except Exception as failure:
                error = type(failure).__name__
                raise
            finally:
                labels = {names.OPERATION: name.removeprefix("nixl.")} | ({"error.type": error} if error else {})
                self._operation.record(time.perf_counter() - start_s, labels)
                if span.is_recording():
                    found: dict[str, Any] = {}
                    span.set_attributes(_safely(attributes, found) | ({"error.type": error} if error else {}))

    def _memory(self, name: str, sign: int) -> Callable[[Any], Any]:
        def wrap(original: Any) -> Any:
            def method(agent: Any, regions: Any, *args: Any, **kwargs: Any) -> Any:
                # Before the call: a list that was given up may be empty after it.
                known = _safely(lambda: lengths(regions), None)

                def attributes() -> dict[str, Any]:
                    found = {names.AGENT: agent.name}
                    if known is not None:
                        found[names.DESCRIPTORS] = known.number
                        if known.total is not None:
                            found[names.BYTES] = known.total
                    return found

                result = self._call(name, attributes, lambda: original(agent, regions, *args, **kwargs))
                total = known.total if known is not None else None
                if total is not None:
                    _safely(lambda: self._registered.add(sign * total, {}), None)
                return result

            return method

        return wrap

    def _timed(self, name: str) -> Callable[[Any], Any]:
        def wrap(original: Any) -> Any:
            def method(agent: Any, *args: Any, **kwargs: Any) -> Any:
                result: Any = None

                def attributes() -> dict[str, Any]:
                    peer = result if isinstance(result, str | bytes) else kwargs.get("remote_agent", "")
                    if not peer and args and isinstance(args[0], str):
                        peer = args[0]
                    return {names.AGENT: agent.name, names.PEER: _text(peer)}

                def call() -> Any:
                    nonlocal result
                    result = original(agent, *args, **kwargs)
                    return result

                return self._call(name, attributes, call)

            return method

        return wrap

    def _prepare_list(self, original: Any) -> Any:
        def method(agent: Any, agent_name: str, xfer_list: Any, *args: Any, **kwargs: Any) -> Any:
            known = _safely(lambda: lengths(xfer_list), None)

            def attributes() -> dict[str, Any]:
                return {
                    names.AGENT: agent.name,
                    names.PEER: _text(agent_name),
                    names.DESCRIPTORS: known.number if known is not None else 0,
                    names.OPERATION: "prep_xfer_dlist",
                }

            handle = self._call(
                names.PREPARE, attributes, lambda: original(agent, agent_name, xfer_list, *args, **kwargs)
            )
            _safely(lambda: self._lists.remember(handle, known, _text(agent_name)), None)
            return handle

        return method

    def _prepare(self, original: Any) -> Any:
        by_index = original.__name__ == "make_prepped_xfer"
        labels = {names.OPERATION: original.__name__}

        def method(agent: Any, operation: str, local: Any, *args: Any, **kwargs: Any) -> Any:
            start_s = time.perf_counter()
            try:
                handle = original(agent, operation, local, *args, **kwargs)
            except Exception as failure:
                self._tell_unprepared(agent, labels, time.perf_counter() - start_s, type(failure).__name__)
                raise
            took_s = time.perf_counter() - start_s
            self._operation.record(took_s, labels)

            def remember() -> None:
                peer = ""
                if by_index:
                    remote = args[1] if len(args) > 1 else kwargs.get("remote_xfer_side")
                    indices = args[0] if args else kwargs.get("local_indices", ())
                    count = len(indices)
                    moved = self._lists.chosen_bytes(local, count)
                    peer = self._lists.peer(remote)
                else:
                    peer = _text(args[1] if len(args) > 1 else kwargs.get("remote_agent", ""))
                    count, moved = local.descCount() if hasattr(local, "descCount") else len(local), None
                attributes: dict[str, Any] = {
                    names.AGENT: agent.name,
                    names.PEER: peer,
                    names.OPERATION: operation,
                    names.DIRECTION: _DIRECTIONS.get(operation, operation),
                    names.DESCRIPTORS: count,
                    names.PREPARE_S: took_s,
                }
                if moved is not None:
                    attributes[names.BYTES] = moved
                if len(self._requests) >= MOST_REQUESTS:
                    self._requests.pop(next(iter(self._requests)), None)
                self._requests[_key(handle)] = _Request(attributes, contexts.get_current())

            _safely(remember, None)
            return handle

        return method

    def _tell_unprepared(self, agent: Any, labels: dict[str, str], took_s: float, error: str) -> None:
        """Tell of a transfer that was not even prepared, as a span of its own."""

        def tell() -> None:
            self._operation.record(took_s, labels | {"error.type": error})
            end_ns = time.time_ns()
            span = self._tracer.start_span(
                names.PREPARE,
                kind=SpanKind.CLIENT,
                start_time=end_ns - round(took_s * 1e9),
                attributes=labels | {names.AGENT: agent.name, "error.type": error},
            )
            span.set_status(Status(StatusCode.ERROR, error))
            span.end(end_ns)

        _safely(tell, None)

    def _transfer(self, original: Any) -> Any:
        def method(agent: Any, handle: Any, *args: Any, **kwargs: Any) -> Any:
            request = self._requests.get(_key(handle))
            if request is None:
                return original(agent, handle, *args, **kwargs)
            active = contexts.get_current()
            if not trace.get_current_span(active).get_span_context().is_valid:
                active = request.context
            request.span = self._tracer.start_span(names.TRANSFER, context=active, kind=SpanKind.CLIENT)
            request.start_s = time.perf_counter()
            try:
                status = original(agent, handle, *args, **kwargs)
            except Exception as failure:
                request.posted_s = time.perf_counter()
                self._end(agent, handle, request, type(failure).__name__)
                raise
            request.posted_s = time.perf_counter()
            if status != "PROC":
                self._end(agent, handle, request, "" if status == "DONE" else str(status))
            return status

        return method

    def _check(self, original: Any) -> Any:
        requests = self._requests

        def method(agent: Any, handle: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                status = original(agent, handle, *args, **kwargs)
            except Exception as failure:
                request = requests.get(_key(handle))
                if request is not None:
                    self._end(agent, handle, request, type(failure).__name__)
                raise
            if status != "PROC":
                request = requests.get(_key(handle))
                if request is not None:
                    self._end(agent, handle, request, "" if status == "DONE" else str(status))
            return status

        return method

    def _release(self, original: Any) -> Any:
        def method(agent: Any, handle: Any, *args: Any, **kwargs: Any) -> Any:
            request = self._requests.pop(_key(handle), None)
            if request is not None:
                self._end(agent, handle, request, "released")
            return original(agent, handle, *args, **kwargs)

        return method

    def _end(self, agent: Any, handle: Any, request: _Request, error: str) -> None:
        """End the span of a post, once; a transfer that is polled after its end has none any more."""
        span, request.span = request.span, None
        if span is None:
            return
        try:
            self._tell(agent, handle, request, span, error)
        except Exception:  # the engine's transfer went well, whatever went wrong in telling of it
            _log.debug("telling of a NIXL transfer failed", exc_info=True)
            span.end()

    def _tell(self, agent: Any, handle: Any, request: _Request, span: Any, error: str) -> None:
        now_s = time.perf_counter()
        attributes = request.attributes
        if names.BACKEND not in attributes:
            attributes[names.BACKEND] = _safely(lambda: agent.query_xfer_backend(handle), "")
        if not error and agent.name not in self._untold:
            told = _safely(lambda: agent.get_xfer_telemetry(handle), None)
            if told is not None:
                attributes[names.BYTES], attributes[names.DESCRIPTORS] = int(told.totalBytes), int(told.descCount)
            elif len(self._untold) < MOST_REQUESTS:
                self._untold.add(agent.name)  # its telemetry is off, and asking costs an exception each time
        labels = {
            names.DIRECTION: attributes[names.DIRECTION],
            names.BACKEND: attributes[names.BACKEND],
        }
        if error:
            labels["error.type"] = error
            span.set_status(Status(StatusCode.ERROR, error))
        self._duration.record(now_s - request.start_s, labels)
        if not error:
            self._moved.add(attributes.get(names.BYTES, 0), labels)
            self._descriptors.add(attributes[names.DESCRIPTORS], labels)
        if span.is_recording():
            span.set_attributes(
                attributes
                | labels
                | {names.POST_S: request.posted_s - request.start_s, names.WAIT_S: now_s - request.posted_s}
            )
        span.end()


def _key(handle: Any) -> Any:
    """Return what a handle is known by: its address; NIXL before 1.0 gave that itself."""
    return getattr(handle, "_handle", handle)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


def _safely(call: Callable[[], T], otherwise: T) -> T:
    try:
        return call()
    except Exception:  # nothing that is only told of may stop the engine
        _log.debug("instrumenting NIXL failed", exc_info=True)
        return otherwise
