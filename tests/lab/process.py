"""Commands inside a machine: the host's end of the channel to tests/lab/guest/agent.py."""

import json
import re
import signal as signals
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.lab.image import LabError

__all__ = [
    "Channel",
    "CommandError",
    "CommandFailedError",
    "CommandTimeoutError",
    "MachineLostError",
    "Process",
    "Result",
]

_HEADER = struct.Struct(">IcI")
_INPUT_CHUNK = 32768
_DYING_S = 20.0


@dataclass(frozen=True)
class Result:
    """How a command ended: exit status (negative: killed by that signal) and what it printed, as UTF-8."""

    rc: int
    stdout: str
    stderr: str


class MachineLostError(LabError):
    """The machine crashed, hung or was killed."""


class CommandError(LabError):
    """A command did not do as it had to; `log` is what it printed, `rc` its exit status if it ended."""

    def __init__(self, message: str, log: str, rc: int | None) -> None:
        super().__init__(message)
        self.log = log
        self.rc = rc


class CommandTimeoutError(CommandError):
    """A command ran past its limit."""


class CommandFailedError(CommandError):
    """A command that had to succeed did not."""


class Process:
    """A command running in a machine, started by Machine.spawn."""

    def __init__(self, channel: "Channel", number: int, title: str) -> None:
        self.title = title
        self._channel = channel
        self._number = number
        self._out = {b"O": bytearray(), b"R": bytearray()}
        self._rc: int | None = None
        self.on_output: Callable[[bytes], None] | None = None

    @property
    def stdout(self) -> bytes:
        """Everything the command wrote to its standard output so far."""
        with self._channel.changed:
            return bytes(self._out[b"O"])

    @property
    def stderr(self) -> bytes:
        """Everything the command wrote to its standard error so far."""
        with self._channel.changed:
            return bytes(self._out[b"R"])

    def log(self) -> str:
        """Return standard output, then standard error, so far, as text."""
        return (self.stdout + self.stderr).decode(errors="replace")

    def poll(self) -> int | None:
        """Return the exit status, or None while the command runs; raises MachineLostError."""
        with self._channel.changed:
            if self._rc is None:
                self._channel.check()
            return self._rc

    def wait(self, timeout_s: float) -> Result:
        """Return the result; past the limit kill the command and raise CommandTimeoutError; raises MachineLostError."""
        if not self._await(lambda: self._rc is not None, timeout_s):
            self.kill()
            raise CommandTimeoutError(f"{self.title!r} was killed after {timeout_s:g} s", self.log(), self._rc)
        assert self._rc is not None
        return Result(self._rc, self.stdout.decode(errors="replace"), self.stderr.decode(errors="replace"))

    def wait_for(self, pattern: str, timeout_s: float) -> re.Match[str]:
        """Return the first match of a regular expression in the log, waiting for it up to the limit.

        Raises CommandFailedError when the command ends first, and CommandTimeoutError (the command goes on).
        """

        def found() -> re.Match[str] | None:
            text = bytes(self._out[b"O"] + self._out[b"R"]).decode(errors="replace")
            return re.search(pattern, text, re.MULTILINE)

        in_time = self._await(lambda: found() is not None or self._rc is not None, timeout_s)
        with self._channel.changed:
            match = found()
        if match:
            return match
        log = self.log()
        if in_time:
            raise CommandFailedError(f"{self.title!r} ended ({self._rc}) without {pattern!r}: {log}", log, self._rc)
        raise CommandTimeoutError(f"{self.title!r} printed no {pattern!r} in {timeout_s:g} s: {log}", log, None)

    def kill(self, signal: int = signals.SIGKILL) -> None:
        """Send a signal: SIGKILL to the command and all it started (returns when it is gone), others to its group."""
        with self._channel.changed:
            if self._rc is not None:
                return
        self._channel.send(self._number, b"K", str(int(signal)).encode())
        if signal == signals.SIGKILL and not self._await(lambda: self._rc is not None, _DYING_S):
            raise self._channel.lost(f"{self.title!r} does not die: the machine hangs")

    def write(self, data: bytes) -> None:
        """Give the command standard input."""
        for start in range(0, len(data), _INPUT_CHUNK):
            self._channel.send(self._number, b"I", data[start : start + _INPUT_CHUNK])

    def close_input(self) -> None:
        """End the command's standard input."""
        self._channel.send(self._number, b"E", b"")

    def resize(self, rows: int, columns: int) -> None:
        """Tell the size of the terminal to a command spawned with one."""
        self._channel.send(self._number, b"W", json.dumps([rows, columns]).encode())

    def receive(self, kind: bytes, payload: bytes) -> None:
        """Take a frame from the machine; called by the channel."""
        if kind == b"X":
            self._rc = int(payload)
        elif self.on_output:
            self.on_output(payload)
        else:
            self._out[kind] += payload

    def _await(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        with self._channel.changed:
            while not condition():
                self._channel.check()
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._channel.changed.wait(left)
            return True


class Channel:
    """Frames to and from one machine; a thread reads them until the machine is gone."""

    def __init__(self, connection: socket.socket, lost: Callable[[str], MachineLostError]) -> None:
        self.changed = threading.Condition()
        self.lost = lost
        self.ready = False
        self._connection = connection
        self._sending = threading.Lock()
        self._jobs: dict[int, Process] = {}
        self._count = 0
        self._closed = False
        self._reader = threading.Thread(target=self._read, name="lab-channel", daemon=True)
        self._reader.start()

    def check(self) -> None:
        """Raise MachineLostError when the machine is gone."""
        if self._closed:
            raise self.lost("the machine is gone")

    def await_ready(self, timeout_s: float) -> None:
        """Wait for the machine's agent; raises MachineLostError past the limit."""
        with self.changed:
            self.changed.wait_for(lambda: self.ready or self._closed, timeout_s)
            if not self.ready:
                raise self.lost("crashed while booting" if self._closed else f"did not boot in {timeout_s:g} s")

    def start(
        self,
        command: str | Sequence[str],
        folder: str,
        environment: Mapping[str, str],
        terminal: tuple[int, int] | None,
        on_output: Callable[[bytes], None] | None = None,
    ) -> Process:
        """Start a command: a string goes to bash, a sequence is run as it is."""
        line = ["/bin/bash", "-c", command] if isinstance(command, str) else list(command)
        with self.changed:
            self.check()
            self._count += 1
            process = Process(self, self._count, command if isinstance(command, str) else " ".join(command))
            process.on_output = on_output
            self._jobs[self._count] = process
            number = self._count
        order = {"command": line, "folder": folder, "environment": dict(environment), "terminal": terminal}
        self.send(number, b"S", json.dumps(order).encode())
        return process

    def send(self, number: int, kind: bytes, payload: bytes) -> None:
        """Send one frame; raises MachineLostError."""
        try:
            with self._sending:
                self._connection.sendall(_HEADER.pack(number, kind, len(payload)) + payload)
        except OSError as error:
            raise self.lost("the machine is gone") from error

    def close(self) -> None:
        """End the channel."""
        self._connection.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._connection.close()

    def _read(self) -> None:
        buffer = bytearray()
        while True:
            try:
                data = self._connection.recv(65536)
            except OSError:
                data = b""
            if not data:
                break
            buffer += data
            with self.changed:
                self._deliver(buffer)
                self.changed.notify_all()
        with self.changed:
            self._closed = True
            self.changed.notify_all()

    def _deliver(self, buffer: bytearray) -> None:
        while len(buffer) >= _HEADER.size:
            number, kind, length = _HEADER.unpack_from(buffer)
            end = _HEADER.size + length
            if len(buffer) < end:
                return
            if kind == b"H":
                self.ready = True
            else:
                self._jobs[number].receive(kind, bytes(buffer[_HEADER.size : end]))
                if kind == b"X":
                    del self._jobs[number]
            del buffer[:end]
