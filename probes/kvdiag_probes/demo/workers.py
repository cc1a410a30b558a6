"""The two worker processes as the orchestrator holds them."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL

from kvdiag.errors import UndeterminedError
from kvdiag_probes.demo import tether, worker
from kvdiag_probes.demo.channel import AnyMessage, Channel, Closed, Failed, Message

_STOP_WITHIN_S = 5.0


class Worker:
    """One process: its pid, its command channel, its log."""

    def __init__(self, role: str, process: subprocess.Popen[bytes], channel: Channel, log: Path) -> None:
        self.role, self.pid = role, process.pid
        self._process, self._channel, self._log = process, channel, log

    def send(self, message: Message) -> None:
        """Send a command; UndeterminedError where the process is gone."""
        try:
            self._channel.send(message)
        except Closed as error:
            raise self._ended() from error

    def poll(self) -> Iterator[AnyMessage]:
        """Yield what it says; UndeterminedError with its reason where it failed, or with its log's end."""
        try:
            for message in self._channel.poll():
                if isinstance(message, Failed):
                    raise UndeterminedError(f"the {self.role} process failed: {message.reason}")
                yield message
        except Closed as error:
            raise self._ended() from error

    def expect(self, kind: type[Message], timeout_s: float) -> None:
        """Wait for a message of that kind; UndeterminedError where something else or nothing comes."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            for message in self.poll():
                if isinstance(message, kind):
                    return
                raise UndeterminedError(f"the {self.role} process said {type(message).__name__} out of turn")
            time.sleep(0.02)
        raise UndeterminedError(f"the {self.role} process was not {kind.__name__.lower()} within {timeout_s:g} s")

    def stop(self) -> None:
        """Close its channel, which ends it, and wait; kill it when it stays."""
        self._channel.close()
        try:
            self._process.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ended(self) -> UndeterminedError:
        try:
            status = self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            return UndeterminedError(f"the {self.role} process closed its channel and stays; log: {self._log}")
        lines = self._log.read_text(errors="replace").strip().splitlines()
        how = f"signal {-status}" if status < 0 else f"status {status}"
        return UndeterminedError(
            f"the {self.role} process ended with {how} in mid-run: {lines[-1] if lines else 'it said nothing'}"
        )


@contextmanager
def started(settings_file: Path, folder: Path, *, isolated: bool) -> Iterator[tuple[Worker, Worker]]:
    """Start prefill and decode, each in a new network namespace where `isolated`; both are gone afterwards."""
    peers = Channel.pair()
    running: list[Worker] = []
    try:
        for role, peer in zip(("prefill", "decode"), peers, strict=True):
            near, far = Channel.pair()
            log = folder / f"{role}.log"
            program = worker.command_line(role, settings_file, far, peer)
            with log.open("wb") as output:
                process = subprocess.Popen(
                    tether.wrap(program, on_parent_death=SIGKILL, netns=isolated),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(far.fileno(), peer.fileno()),
                    start_new_session=True,
                )
            far.close()
            running.append(Worker(role, process, near, log))
        for peer in peers:
            peer.close()
        yield running[0], running[1]
    finally:
        for one in running:
            one.stop()
