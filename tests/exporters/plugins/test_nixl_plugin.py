"""The NIXL instrumentation: a real pair of agents under `opentelemetry-instrument`, and faults that a fake can have."""

import importlib.util
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kvdiag.model import nixl_span as names
from kvdiag.model.span import Span
from kvdiag_exporters.plugins import nixl as plugin
from kvdiag_exporters.plugins.nixl_sizes import Lengths, lengths
from kvdiag_exporters.records.otlp_http import OtlpHttp

AGENTS = Path(__file__).parents[1] / "nixl_agents.py"
WRITES, READS, REGIONS = 5, 3, 2


@pytest.mark.component
@pytest.mark.skipif(importlib.util.find_spec("nixl_cu12") is None, reason="the wheel nixl-cu12 is not installed")
def test_every_transfer_of_real_agents_is_a_span() -> None:
    found: list[Span] = []
    server = OtlpHttp("127.0.0.1", 0, found.extend)
    server.start()
    environ = {
        **os.environ, "UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo", "UCX_MODULES": "^efa", "NIXL_LOG_LEVEL": "WARN",
        "NIXL_TELEMETRY_ENABLE": "y", "OTEL_SERVICE_NAME": "prefill", "OTEL_TRACES_EXPORTER": "otlp_proto_http",
        "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none", "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{server.address}",
    }  # fmt: skip
    instrument = str(Path(sys.executable).with_name("opentelemetry-instrument"))
    command = [instrument, sys.executable, str(AGENTS), str(WRITES), str(READS), str(REGIONS)]
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "done\n"
            deadline = time.monotonic() + 30
            while len([one for one in found if one.name == names.TRANSFER]) < WRITES + READS:
                assert time.monotonic() < deadline, found
                time.sleep(0.05)
        finally:
            process.kill()
            server.stop()
    assert Counter(one.name for one in found) == {
        names.TRANSFER: WRITES + READS, names.REGISTER: REGIONS + 1, names.ADD_PEER: 1,
    }  # fmt: skip
    moved = [one for one in found if one.name == names.TRANSFER]
    assert Counter(one.attributes[names.DIRECTION] for one in moved) == {"push": WRITES, "pull": READS}
    for one in moved:
        told = one.attributes
        assert (told[names.BYTES], told[names.DESCRIPTORS], told[names.BACKEND]) == (4 * 65536, 4, "UCX")
        assert (told[names.AGENT], told[names.PEER]) == ("prefill-0", "decode-0")
        post_s, wait_s = one.number(names.POST_S), one.number(names.WAIT_S)
        assert post_s is not None
        assert wait_s is not None
        assert 0 < post_s <= post_s + wait_s <= one.duration_s + 0.001
        assert (one.number(names.PREPARE_S) or 0.0) > 0
        assert one.failed == ""
        assert one.resource["service.name"] == "prefill"
    assert {one.number(names.BYTES) for one in found if one.name == names.REGISTER} == {float(1 << 20)}


class Handle:
    def __init__(self, address: int) -> None:
        self._handle = address


class Descriptors(list[tuple[int, int, int]]):
    def descCount(self) -> int:  # noqa: N802  (as NIXL names it)
        return len(self)


def fake_module() -> ModuleType:
    """Return a module with an agent that has NIXL's methods and fails where it is told to."""

    class nixl_agent:  # noqa: N801  (as NIXL names it)
        name = "here"
        answers: Any = None
        asked = 0

        def register_memory(self, regions: Any, mem_type: str | None = None) -> Any:
            if regions == "broken":
                raise RuntimeError("NIXL_ERR_BACKEND")
            return regions

        def add_remote_agent(self, metadata: bytes) -> bytes:
            return b"there"

        def initialize_xfer(self, operation: str, local: Any, remote: Any, peer: str) -> Handle:
            if peer == "unknown":
                raise KeyError("NIXL_ERR_NOT_FOUND")
            return Handle(7)

        def transfer(self, handle: Handle) -> str:
            return str(self._answer())

        def check_xfer_state(self, handle: Handle) -> str:
            return str(self._answer())

        def release_xfer_handle(self, handle: Handle) -> None: ...

        def query_xfer_backend(self, handle: Handle) -> str:
            return "UCX"

        def get_xfer_telemetry(self, handle: Handle) -> Any:
            self.asked += 1
            raise RuntimeError("NIXL_ERR_NO_TELEMETRY")

        def _answer(self) -> Any:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    module = ModuleType("nixl._api")
    module.nixl_agent = nixl_agent  # type: ignore[attr-defined]
    return module


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, InMemorySpanExporter, InMemoryMetricReader]]:
    """Give an instrumented agent, what it tells as spans, and as metrics."""
    module = fake_module()
    monkeypatch.setitem(sys.modules, "nixl._api", module)
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    meters = MeterProvider([reader], shutdown_on_exit=False)
    instrumentor = plugin.NixlInstrumentor()
    before = dict(module.nixl_agent.__dict__)
    instrumentor.instrument(tracer_provider=tracers, meter_provider=meters)
    try:
        yield module.nixl_agent(), exporter, reader
    finally:
        instrumentor.uninstrument()
    assert {key: value for key, value in module.nixl_agent.__dict__.items() if key in before} == before


def transfers(exporter: InMemorySpanExporter) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == names.TRANSFER]


BLOCKS = Descriptors([(0, 64, 0)] * 3)


def test_a_transfer_is_in_the_trace_that_was_active(told: tuple[Any, InMemorySpanExporter, Any]) -> None:
    agent, exporter, _ = told
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("engine")
    agent.answers = ["PROC", "PROC", "DONE", "DONE", "DONE"]
    with tracer.start_as_current_span("request") as request:
        handle = agent.initialize_xfer("READ", BLOCKS, BLOCKS, "there")
    # Posted by another thread, outside the trace: the one of its preparation counts.
    assert [agent.transfer(handle), agent.check_xfer_state(handle), agent.check_xfer_state(handle)] == [
        "PROC", "PROC", "DONE",
    ]  # fmt: skip
    assert agent.check_xfer_state(handle) == "DONE"  # polled once more: no second span
    with tracer.start_as_current_span("another") as another:
        assert agent.transfer(handle) == "DONE"  # posted again: a span of its own, in that trace
    first, second = transfers(exporter)
    assert first.context is not None
    assert second.context is not None
    assert first.context.trace_id == request.get_span_context().trace_id
    assert second.context.trace_id == another.get_span_context().trace_id
    assert first.attributes is not None
    assert (first.attributes[names.DESCRIPTORS], first.attributes[names.PEER]) == (3, "there")
    assert names.BYTES not in first.attributes  # without telemetry nobody knows: absent, not zero
    assert agent.asked == 1


@pytest.mark.parametrize(("answers", "error"), [
    ([RuntimeError("x")], "RuntimeError"), (["PROC", ValueError("x")], "ValueError"), (["PROC", "ERR"], "ERR"),
])  # fmt: skip
def test_failures_are_told_and_raised(told: tuple[Any, InMemorySpanExporter, Any], answers: Any, error: str) -> None:
    agent, exporter, reader = told
    agent.answers = list(answers)
    handle = agent.initialize_xfer("WRITE", BLOCKS, BLOCKS, "there")
    raised = ""
    try:
        assert agent.transfer(handle) == "PROC"
        raised = agent.check_xfer_state(handle)
    except (RuntimeError, ValueError) as failure:
        raised = type(failure).__name__
    assert raised == error
    (span,) = transfers(exporter)
    assert span.status.status_code is trace.StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["error.type"] == error
    points = {
        metric.name: list(metric.data.data_points)
        for scope in reader.get_metrics_data().resource_metrics[0].scope_metrics
        for metric in scope.metrics
    }
    (duration,) = points["nixl.transfer.duration"]
    assert dict(duration.attributes)["error.type"] == error
    assert names.PEER not in dict(duration.attributes)  # peers are random names: never a metric's label
    assert "nixl.transfer.io" not in points


def test_a_released_transfer_and_a_failed_registration_are_told(told: tuple[Any, InMemorySpanExporter, Any]) -> None:
    agent, exporter, _ = told
    agent.answers = ["PROC"]
    handle = agent.initialize_xfer("WRITE", BLOCKS, BLOCKS, "there")
    agent.transfer(handle)
    agent.release_xfer_handle(handle)
    with pytest.raises(KeyError):
        agent.initialize_xfer("WRITE", BLOCKS, BLOCKS, "unknown")
    with pytest.raises(RuntimeError):
        agent.register_memory("broken")
    assert agent.add_remote_agent(b"metadata") == b"there"
    spans = exporter.get_finished_spans()
    assert [span.name for span in spans] == [names.TRANSFER, names.PREPARE, names.REGISTER, names.ADD_PEER]
    errors = [(span.attributes or {}).get("error.type") for span in spans]
    assert errors == ["released", "KeyError", "RuntimeError", None]
    assert (spans[3].attributes or {})[names.PEER] == "there"


def test_telling_that_fails_does_not_reach_the_engine(
    told: tuple[Any, InMemorySpanExporter, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, _, _ = told
    monkeypatch.setattr(plugin._Patch, "_tell", lambda *args: 1 / 0)
    monkeypatch.setattr(plugin, "lengths", lambda given: 1 / 0)
    agent.answers = ["DONE"]
    handle = agent.initialize_xfer("WRITE", object, BLOCKS, "there")
    assert agent.transfer(handle) == "DONE"
    assert agent.register_memory(BLOCKS) is BLOCKS


def test_memory_is_bounded(told: tuple[Any, InMemorySpanExporter, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    agent, _, _ = told
    monkeypatch.setattr(plugin, "MOST_REQUESTS", 4)
    patch = plugin.NixlInstrumentor()._patch
    assert patch is not None
    monkeypatch.setattr(plugin, "_key", id)
    kept = [agent.initialize_xfer("WRITE", BLOCKS, BLOCKS, "there") for _ in range(100)]
    assert len(kept) == 100
    assert len(patch._requests) == 4


def test_lengths_of_what_nixl_takes() -> None:
    import numpy as np

    assert lengths([(0, 64, 0, ""), (64, 32, 0, "")]) == Lengths(2, 96, None)
    assert lengths(BLOCKS) == Lengths(3, 192, 64)
    assert lengths(np.array([[0, 64, 0], [64, 64, 0]])) == Lengths(2, 128, 64)
    assert lengths(np.array([[0, 64, 0, 128, 10]])) == Lengths(10, 640, 64)
    assert lengths(np.zeros(100, dtype=np.uint8)) == Lengths(1, 100, 100)
    assert lengths([(0, 1, 0)] * 20_000) == Lengths(20_000, None, None)
    assert lengths(object()) is None


def test_the_instrumentation_is_found_by_its_entry_point() -> None:
    (found,) = entry_points(group="opentelemetry_instrumentor", name="nixl")
    assert found.load() is plugin.NixlInstrumentor
