#!/usr/bin/python3
"""Runs commands inside the machine for the host, many at once, over one virtio-serial port.

A frame is a header (job number, kind, length) and that many bytes. Kinds from the host: S start (JSON), I input, E end
of input, K signal, W window size. Kinds to the host: H hello, O output, R error output, X exit status.
"""

import contextlib
import fcntl
import json
import os
import pty
import selectors
import signal
import struct
import subprocess
import termios
from pathlib import Path
from typing import Any

HEADER = struct.Struct(">IcI")
CHUNK = 65536
CGROUPS = Path("/sys/fs/cgroup")


def open_port() -> int:
    for port in Path("/sys/class/virtio-ports").iterdir():
        if (port / "name").read_text().strip() == "lab.agent":
            return os.open(f"/dev/{port.name}", os.O_RDWR)
    raise SystemExit("no virtio-serial port named lab.agent")


class Job:
    """One command, its pipes or terminal, and the control group that holds all its processes."""

    def __init__(self, server: "Server", number: int, order: dict[str, Any]) -> None:
        self.server = server
        self.number = number
        self.pending = bytearray()
        self.input_ends = False
        self.kinds: dict[int, bytes] = {}
        self.group = CGROUPS / f"job{number}"
        self.group.mkdir()
        if order["terminal"]:
            self.input, end = pty.openpty()
            self.kinds[self.input] = b"O"
            self.window(order["terminal"])
            stdin = stdout = stderr = end
        else:
            stdin, self.input = os.pipe()
            out, stdout = os.pipe()
            err, stderr = os.pipe()
            self.kinds.update({out: b"O", err: b"R"})
        environment = {**os.environ, **order["environment"]}
        terminal = bool(order["terminal"])

        def enter() -> None:
            (self.group / "cgroup.procs").write_text("0")
            if terminal:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        try:
            self.process = subprocess.Popen(
                order["command"],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=order["folder"],
                env=environment,
                start_new_session=True,
                preexec_fn=enter,
            )
        except OSError:
            for descriptor in {self.input, *self.kinds}:
                os.close(descriptor)
            self.group.rmdir()
            raise
        finally:
            for descriptor in {stdin, stdout, stderr}:
                os.close(descriptor)
        for descriptor in {self.input, *self.kinds}:
            os.set_blocking(descriptor, False)
        for descriptor in self.kinds:
            server.watch(descriptor, selectors.EVENT_READ, self)

    def window(self, size: list[int]) -> None:
        fcntl.ioctl(self.input, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))

    def feed(self, data: bytes) -> None:
        self.pending += data
        self.pump()

    def end_input(self) -> None:
        self.input_ends = True
        self.pump()

    def pump(self) -> None:
        """Write what the command takes now; the rest when it is ready."""
        if self.input < 0:
            return
        try:
            while self.pending:
                del self.pending[: os.write(self.input, self.pending)]
        except BlockingIOError:
            self.server.watch(self.input, self.events(self.input) | selectors.EVENT_WRITE, self)
            return
        except OSError:
            self.pending.clear()  # the command no longer reads
        if self.input in self.kinds:
            self.server.watch(self.input, selectors.EVENT_READ, self)
        else:
            self.server.watch(self.input, 0, self)
            if self.input_ends:
                os.close(self.input)
                self.input = -1

    def events(self, descriptor: int) -> int:
        return selectors.EVENT_READ if descriptor in self.kinds else 0

    def read(self, descriptor: int) -> bool:
        """Pass on one piece of output; False when there is none now."""
        try:
            data = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""  # a terminal whose last user has gone
        if data:
            self.server.send(self.number, self.kinds[descriptor], data)
            return True
        self.server.watch(descriptor, 0, self)
        del self.kinds[descriptor]
        if descriptor != self.input:
            os.close(descriptor)
        return False

    def signal(self, number: int) -> None:
        if number == signal.SIGKILL:
            (self.group / "cgroup.kill").write_text("1")
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def finish(self) -> None:
        """Report a command that has ended; what it left running dies."""
        status = self.process.wait()
        self.signal(signal.SIGKILL)
        for descriptor in list(self.kinds):
            while self.read(descriptor):
                pass
        for descriptor in {self.input, *self.kinds} - {-1}:
            self.server.watch(descriptor, 0, self)
            os.close(descriptor)
        self.server.send(self.number, b"X", str(status).encode())


class Server:
    """The loop between the port and the jobs."""

    def __init__(self) -> None:
        self.port = open_port()
        self.selector = selectors.DefaultSelector()
        self.jobs: dict[int, Job] = {}
        self.dead_groups: list[Path] = []
        self.buffer = bytearray()

    def watch(self, descriptor: int, events: int, job: Job) -> None:
        known = descriptor in self.selector.get_map()
        if events and known:
            self.selector.modify(descriptor, events, job)
        elif events:
            self.selector.register(descriptor, events, job)
        elif known:
            self.selector.unregister(descriptor)

    def send(self, job: int, kind: bytes, payload: bytes) -> None:
        data = memoryview(HEADER.pack(job, kind, len(payload)) + payload)
        while data:
            data = data[os.write(self.port, data) :]

    def start(self, number: int, payload: bytes) -> None:
        try:
            self.jobs[number] = Job(self, number, json.loads(payload))
        except (OSError, subprocess.SubprocessError) as error:
            self.send(number, b"R", f"{error}\n".encode())
            self.send(number, b"X", b"127")

    def obey(self, number: int, kind: bytes, payload: bytes) -> None:
        if kind == b"S":
            self.start(number, payload)
            return
        job = self.jobs.get(number)
        if job is None:
            return  # it has just ended
        if kind == b"I":
            job.feed(payload)
        elif kind == b"E":
            job.end_input()
        elif kind == b"K":
            job.signal(int(payload))
        elif kind == b"W":
            job.window(json.loads(payload))

    def listen(self) -> None:
        self.buffer += os.read(self.port, CHUNK)
        while len(self.buffer) >= HEADER.size:
            number, kind, length = HEADER.unpack_from(self.buffer)
            end = HEADER.size + length
            if len(self.buffer) < end:
                return
            payload = bytes(self.buffer[HEADER.size : end])
            del self.buffer[:end]
            self.obey(number, kind, payload)

    def reap(self) -> None:
        """Bury the dead: commands, and, as the machine's first process, everybody's orphans."""
        while dead := self.dead_child():
            job = next((job for job in self.jobs.values() if job.process.pid == dead), None)
            if job:
                job.finish()
                self.dead_groups.append(job.group)
                del self.jobs[job.number]
            else:
                os.waitpid(dead, 0)
        for group in list(self.dead_groups):
            with contextlib.suppress(OSError):  # its processes are still dying
                group.rmdir()
                self.dead_groups.remove(group)

    @staticmethod
    def dead_child() -> int | None:
        with contextlib.suppress(ChildProcessError):
            if found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return found.si_pid
        return None

    def serve(self) -> None:
        wake, waker = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.selector.register(wake, selectors.EVENT_READ, None)
        self.selector.register(self.port, selectors.EVENT_READ, None)
        self.send(0, b"H", b"")
        while True:
            for key, events in self.selector.select():
                if key.fd == self.port:
                    self.listen()
                elif key.fd == wake:
                    os.read(wake, CHUNK)
                    self.reap()
                elif key.fd in self.selector.get_map():
                    if events & selectors.EVENT_READ:
                        key.data.read(key.fd)
                    if events & selectors.EVENT_WRITE:
                        key.data.pump()


if __name__ == "__main__":
    Server().serve()
