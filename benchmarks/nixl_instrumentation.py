"""What the NIXL instrumentation costs a transfer, beside the same transfers without it: real agents, in one process.

Run: python benchmarks/nixl_instrumentation.py [ROUNDS]. Plain and instrumented rounds alternate, so that other load on
the machine meets both; the medians of CPU time per transfer are compared. Spans are batched and dropped at the end.
"""

import os
import statistics
import sys
import time

os.environ.update(
    {
        "UCX_TLS": "tcp",
        "UCX_NET_DEVICES": "lo",
        "UCX_MODULES": "^efa",
        "NIXL_LOG_LEVEL": "ERROR",
        "NIXL_TELEMETRY_ENABLE": "y",
    }
)

import numpy as np
from nixl_cu12._api import nixl_agent, nixl_agent_config
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from kvdiag_exporters.plugins.nixl import NixlInstrumentor

TRANSFERS = 300


class Nowhere(SpanExporter):
    def export(self, spans: object) -> SpanExportResult:  # noqa: ARG002  (the base class names it)
        return SpanExportResult.SUCCESS


def main(rounds: int) -> None:
    """Print the medians, per size of transfer."""
    agent = nixl_agent("a", nixl_agent_config(enable_prog_thread=False))
    memory = np.zeros(64 << 20, dtype=np.uint8)
    agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
    exported = TracerProvider(shutdown_on_exit=False)
    exported.add_span_processor(BatchSpanProcessor(Nowhere()))
    unsampled = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    print("CPU time per transfer (initialize, post, check, release), medians:")
    for block, blocks in ((4096, 1), (4096, 64)):
        found: dict[str, list[float]] = {"plain": [], "spans": [], "unsampled": []}
        for _ in range(rounds):
            found["plain"].append(once(agent, memory, block, blocks))
            for name, provider in (("spans", exported), ("unsampled", unsampled)):
                NixlInstrumentor().instrument(tracer_provider=provider)
                found[name].append(once(agent, memory, block, blocks))
                NixlInstrumentor().uninstrument()
        plain, spans, off = (statistics.median(values) * 1e6 for values in found.values())
        print(
            f"{blocks:3} × {block:6} B: plain {plain:7.1f} µs, with spans {spans:7.1f} µs (+{spans - plain:.1f}), "
            f"unsampled {off:7.1f} µs (+{off - plain:.1f})"
        )
    sys.stdout.flush()
    os._exit(0)


def once(agent: nixl_agent, memory: "np.ndarray", block: int, blocks: int) -> float:
    """Return the CPU seconds of this thread per transfer."""
    base = memory.ctypes.data
    local = agent.get_xfer_descs([(base + 2 * i * block, block, 0) for i in range(blocks)], "DRAM")
    remote = agent.get_xfer_descs([(base + (32 << 20) + 2 * i * block, block, 0) for i in range(blocks)], "DRAM")
    before = time.thread_time()
    for _ in range(TRANSFERS):
        handle = agent.initialize_xfer("WRITE", local, remote, "a")
        state = agent.transfer(handle)
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        agent.release_xfer_handle(handle)
    return (time.thread_time() - before) / TRANSFERS


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 9)
