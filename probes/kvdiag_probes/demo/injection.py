"""The fault of one run, as the orchestrator holds it: begun half-way, kept up, and ended with the run."""

import subprocess

from kvdiag.errors import UndeterminedError
from kvdiag_probes.demo import faults, network
from kvdiag_probes.demo.channel import Degrade
from kvdiag_probes.demo.pauses import Pauses
from kvdiag_probes.demo.workers import Worker


class Injection:
    """`begin_s` on the monotonic clock; "none" never begins."""

    def __init__(self, fault: str, begin_s: float, prefill: Worker, decode: Worker) -> None:
        self._fault, self._begin_s = fault, begin_s
        self._prefill, self._decode = prefill, decode
        self._begun = fault == "none"
        self._pauses: Pauses | None = None
        self._way: subprocess.Popen[bytes] | None = None

    def step(self, now_s: float) -> None:
        """Begin when it is time, and keep it up; UndeterminedError where it cannot be made after all."""
        if not self._begun and now_s >= self._begin_s:
            self._begun = True
            self._begin(now_s)
        if self._pauses is not None:
            self._pauses.step(now_s)
        if self._way is not None and self._way.poll() is not None:
            raise UndeterminedError(f"the longer way of --fault delay ended with status {self._way.returncode}")

    def end(self) -> None:
        """Let a paused process go on, and end the process that was started for it."""
        if self._pauses is not None:
            self._pauses.end()
        if self._way is not None:
            self._way.kill()
            self._way.wait()

    def _begin(self, now_s: float) -> None:
        if self._fault == "link":
            network.degrade(self._prefill.pid, faults.LINK_BITS_PER_SECOND)
        elif self._fault == "loss":
            network.lose(self._decode.pid, faults.LOSS_SHARE)
        elif self._fault == "delay":
            self._way = network.lengthen(self._prefill.pid, faults.DELAY_S)
        elif self._fault == "pause":
            self._pauses = Pauses(self._decode.pid, now_s, faults.PAUSE_S, faults.PAUSE_EVERY_S)
        elif self._fault != "overload":  # the workload's own doing, in both processes' settings
            self._prefill.send(Degrade(self._fault))
