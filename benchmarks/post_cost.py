"""Times what a posted work request costs in user space, above the provider: python -m benchmarks.post_cost.

The real pyverbs and the probe's own loops run over tests/probes/fake_verbs.c, on which every signalled request
completes at once: the time is that of posting, polling and recording. It needs gcc, libibverbs-dev
(KVDIAG_VERBS_INCLUDE names another folder of headers) and pyverbs, no RDMA device. Times are thread CPU time, the best
of the rounds; passes that record each completion and passes that record nothing take turns.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.probes import fake_device

_CHILD = "KVDIAG_FAKE_VERBS"
_SLOTS, _DEPTH, _ROUNDS = 4096, 128, 60
_BATCHES = (1, 4, 16, 64)
LIMIT_NS = 400
"""What a posted request may cost, amortised in batches of 64."""
RECORDING_LIMIT_NS = 0.03 * LIMIT_NS


def measure() -> int:
    """Print a table of nanoseconds a request; exit code 2 where a batch of 64 costs more than a limit."""
    from kvdiag_probes import posting
    from kvdiag_probes.compiled_turns import loop_for
    from kvdiag_probes.datapath import Operation, Plan

    device = fake_device.Device(_DEPTH)
    lane = device.lane()
    print(f"{'batch':>6} {'ns a request':>13} {'recording off':>14} {'recording':>12} {'limits':>12}")
    ok = True
    for batch in _BATCHES:
        plan = Plan(operation=Operation.WRITE, size=64, slots=_SLOTS, queue_depth=_DEPTH, chain=batch, timeout_s=5.0)
        made = posting.ChainedPass([[lane]], plan, "fake")
        on, off = _best(made.run)
        made.close()
        limits = f"{LIMIT_NS:.0f} and {RECORDING_LIMIT_NS:.0f} ns" if batch == _BATCHES[-1] else ""
        print(f"{batch:>6} {on:>13.1f} {off:>14.1f} {on - off:>9.1f} ns {limits:>14}")
        ok &= not limits or (on <= LIMIT_NS and on - off <= RECORDING_LIMIT_NS)
    alone = Plan(operation=Operation.READ, size=64, slots=_SLOTS, queue_depth=1, chain=1, timeout_s=5.0)
    for loop in (loop_for(lane.queue_pair, lane.completions), "interpreted"):
        if loop == "interpreted":
            vars(posting)["compiled_turns"] = lambda *_: None
        made = posting.ChainedPass([[lane]], alone, "fake")
        least_s = min(statistics.median(made.run().latencies_s) for _ in range(_ROUNDS))
        made.close()
        print(f"of a latency with one message outstanding, {least_s * 1e9:.0f} ns are the loop's own ({loop}; median)")
    device.close()
    return 0 if ok else 2


def _best(run: Callable[[], object]) -> tuple[float, float]:
    """Return the least nanoseconds a request with recording and without, by turns."""
    from kvdiag_probes.posting import ChainedPass

    best = {True: float("inf"), False: float("inf")}
    for _ in range(_ROUNDS):
        for recording in best:
            ChainedPass.recording = recording
            started_ns = time.thread_time_ns()
            run()
            best[recording] = min(best[recording], (time.thread_time_ns() - started_ns) / _SLOTS)
    ChainedPass.recording = True
    return best[True], best[False]


def main() -> int:
    if os.environ.get(_CHILD):
        return measure()
    with tempfile.TemporaryDirectory() as folder:
        library = fake_device.build(Path(folder), os.environ.get("KVDIAG_VERBS_INCLUDE", "/usr/include"))
        environment = os.environ | {"LD_PRELOAD": str(library), _CHILD: "1"}
        return subprocess.run([sys.executable, "-m", "benchmarks.post_cost"], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
