"""Times what a posted work request costs in user space, above the provider: python -m benchmarks.post_cost.

The real pyverbs and the probe's own loop run over benchmarks/fake_verbs.c, on which every signalled request completes
at once. It needs gcc, libibverbs-dev and pyverbs, no RDMA device. Times are thread CPU time, the best of the rounds.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

_SOURCE = Path(__file__).with_name("fake_verbs.c")
_CHILD = "KVDIAG_FAKE_VERBS"
_SLOTS, _DEPTH, _ROUNDS = 4096, 128, 60
LIMIT_NS = 400
RECORDING_LIMIT_NS = 0.03 * LIMIT_NS


def measure() -> int:
    """Print a table of nanoseconds a request; exit code 2 where a batch of 64 costs more than a limit."""
    from kvdiag_probes.datapath import Operation, Plan
    from kvdiag_probes.posting import ChainedPass, Lane
    from kvdiag_probes.verbs import preload

    preload()
    import pyverbs.enums as e
    from pyverbs.cq import CQ
    from pyverbs.device import Context
    from pyverbs.pd import PD
    from pyverbs.qp import QP, QPCap, QPInitAttr

    context = Context(name="fake0")
    domain = PD(context)
    queue = CQ(context, 2 * _DEPTH)
    cap = QPCap(max_send_wr=_DEPTH, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
    pair = QP(domain, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=queue, rcq=queue, cap=cap, sq_sig_all=0))
    lane = Lane(queue_pair=pair, completions=queue, local=1 << 20, lkey=1, remote=1 << 20, rkey=1)
    print(f"{'batch':>6} {'ns a request':>13} {'bare loop':>10} {'recording':>16}")
    ok = True
    for batch in (1, 4, 16, 64):
        plan = Plan(operation=Operation.WRITE, size=64, slots=_SLOTS, queue_depth=_DEPTH, chain=batch, timeout_s=5.0)
        made = ChainedPass([[lane]], plan, "fake")
        whole, bare = _best(made.run, partial(_bare, made, queue, batch))
        made.close()
        print(f"{batch:>6} {whole:>13.1f} {bare:>10.1f} {whole - bare:>13.1f} ns")
        ok &= batch != 64 or (whole <= LIMIT_NS and whole - bare <= RECORDING_LIMIT_NS)
    for made_object in (pair, queue, domain, context):
        made_object.close()
    return 0 if ok else 2


def _bare(made: object, queue: object, batch: int) -> None:
    """Post and reap the same chains with nothing recorded: no clock, no sample, no signal looked up."""
    posts, heads, poll = made._posts, made._heads, queue.poll  # type: ignore[attr-defined]
    count, free, posted, done = len(heads), _DEPTH, 0, 0
    while done < count:
        while posted < count and free >= batch:
            posts[posted](heads[posted])
            free -= batch
            posted += 1
        found, completions = poll(16)
        for completion in completions:
            if completion.status:
                raise RuntimeError(completion.status)
        free += found * batch
        done += found


def _best(*runs: Callable[[], object]) -> list[float]:
    """Return the least nanoseconds a request of each, by turns."""
    best = [float("inf")] * len(runs)
    for _ in range(_ROUNDS):
        for number, run in enumerate(runs):
            started_ns = time.thread_time_ns()
            run()
            best[number] = min(best[number], (time.thread_time_ns() - started_ns) / _SLOTS)
    return best


def main() -> int:
    if os.environ.get(_CHILD):
        return measure()
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "fake_verbs.so"
        include = os.environ.get("KVDIAG_VERBS_INCLUDE", "/usr/include")
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", f"-I{include}", "-o", str(library), str(_SOURCE)], check=True)
        environment = os.environ | {"LD_PRELOAD": str(library), _CHILD: "1"}
        return subprocess.run([sys.executable, "-m", "benchmarks.post_cost"], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
