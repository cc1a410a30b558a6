"""The real pyverbs and the probe's own loops over fake_verbs.c, in a process of its own: JSON on standard output."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

SOURCE = Path(__file__).with_name("fake_verbs.c")


def build(folder: Path, include: str = "/usr/include") -> Path:
    """Compile the device; the library is to be preloaded (LD_PRELOAD)."""
    library = folder / "fake_verbs.so"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", f"-I{include}", "-o", str(library), str(SOURCE)], check=True)
    return library


class Device:
    """An opened fake device; `lane` makes a queue pair with a completion queue of its own."""

    def __init__(self, depth: int = 128) -> None:
        from kvdiag_probes.verbs import preload

        preload()
        from pyverbs.device import Context
        from pyverbs.pd import PD

        self._depth = depth
        self._context = Context(name="fake0")
        self._domain = PD(self._context)
        self._made: list[Any] = [self._context, self._domain]

    def lane(self, local: int = 1 << 20, remote: int = 1 << 20) -> Any:
        import pyverbs.enums as e
        from pyverbs.qp import QP, QPCap, QPInitAttr

        from kvdiag_probes.completion_queue import CompletionQueue
        from kvdiag_probes.posting import Lane

        queue = CompletionQueue(self._context, 2 * self._depth)
        cap = QPCap(max_send_wr=self._depth, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=queue.verbs, rcq=queue.verbs, cap=cap, sq_sig_all=0)
        pair = QP(self._domain, init)
        self._made += [queue, pair]
        return Lane(queue_pair=pair, completions=queue, local=local, lkey=1, remote=remote, rkey=1)

    def close(self) -> None:
        while self._made:
            self._made.pop().close()


_SLOTS, _SIZE = 50, 64
_HALF = _SLOTS * _SIZE


def _told(run: Any) -> dict[str, Any]:
    from kvdiag.errors import KvdiagError

    try:
        done = run()
    except KvdiagError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"latencies": done.latencies_s, "elapsed": done.elapsed_s, "posted": done.posted_s}


def alone(operation: str) -> dict[str, Any]:
    """Run one pass of single messages and say what it measured, and whether each message lies where it should."""
    from kvdiag_probes.compiled_turns import loop_for
    from kvdiag_probes.datapath import Operation, Plan
    from kvdiag_probes.posting import ChainedPass

    near, far = (np.zeros(2 * _HALF, np.uint8) for _ in range(2))
    full, empty = (far, near) if operation == "read" else (near, far)
    full[:] = np.random.default_rng(1).integers(0, 256, len(full))
    device = Device()
    lane = device.lane(near.ctypes.data, far.ctypes.data)
    plan = Plan(
        operation=Operation(operation), size=_SIZE, slots=_SLOTS, queue_depth=1, chain=1, timeout_s=0.2, base=_HALF
    )
    made = ChainedPass([[lane]], plan, "b:1")
    told = _told(made.run) | {"loop": loop_for(lane.queue_pair, lane.completions)}
    told["moved"] = bool((full[_HALF:] == empty[_HALF:]).all()) and not empty[:_HALF].any()
    made.close()
    device.close()
    return told


def exchange() -> dict[str, Any]:
    """Let two queue pairs answer each other's messages, a thread each."""
    from kvdiag_probes import pattern
    from kvdiag_probes.datapath import Operation, Plan
    from kvdiag_probes.ping_pong import expect
    from kvdiag_probes.posting import ChainedPass

    near, far = (np.zeros(2 * _HALF, np.uint8) for _ in range(2))
    buffers = [one.data for one in (near, far)]
    device = Device()
    plan = Plan(operation=Operation.WRITE, size=_SIZE, slots=_SLOTS, queue_depth=1, chain=1, timeout_s=0.5)
    pattern.fill(buffers[0][:_HALF], 1)
    pattern.fill(buffers[1][_HALF:], 2)
    serving = ChainedPass([[device.lane(near.ctypes.data, far.ctypes.data)]], plan, "b:1")
    theirs = replace(plan, base=_HALF)
    answering = ChainedPass([[device.lane(far.ctypes.data, near.ctypes.data)]], theirs, "a:1")
    awaited = [expect(buffers[1], 1, _SIZE, _SLOTS, 0), expect(buffers[0], 2, _SIZE, _SLOTS, _HALF)]
    answers: list[dict[str, Any]] = []
    thread = threading.Thread(
        target=lambda: answers.append(_told(lambda: answering.exchange(buffers[1], awaited[0], serves=False)))
    )
    thread.start()
    told = _told(lambda: serving.exchange(buffers[0], awaited[1], serves=True))
    thread.join()
    told |= {"answer": answers[0], "moved": bool((near == far).all())}
    for made in (serving, answering):
        made.close()
    device.close()
    return told


def stranger() -> dict[str, Any]:
    """Look for a queue pair's structure with the completion queue of another."""
    from kvdiag_probes import queue_pair_pointer

    device = Device()
    one, other = device.lane(), device.lane()
    found = [queue_pair_pointer.find(one.queue_pair, lane.completions.verbs) is not None for lane in (one, other)]
    device.close()
    return {"found": found}


if __name__ == "__main__":
    scenario, *arguments = sys.argv[1:]
    scenarios: dict[str, Callable[..., dict[str, Any]]] = {"alone": alone, "exchange": exchange, "stranger": stranger}
    sys.stdout.write(json.dumps(scenarios[scenario](*arguments)))
