"""A person's shell in the lab: python tests/lab/shell.py [--node|--pair]."""

import argparse
import os
import select
import signal
import sys
import termios
import tty
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.lab import image, topology  # noqa: E402
from tests.lab.machine import Machine  # noqa: E402
from tests.lab.process import Process  # noqa: E402

_SWITCH = b"\x1d"  # Ctrl-]
_PAIR_TEXT = """\
Two machines, a (10.0.0.1) and b (10.0.0.2), each with rxe0 on eth0, joined by a cable.
You are on a. Ctrl-] goes to the other machine and back; exit ends the lab. Try, on b: ib_write_bw -d rxe0 -x 1
then on a: ib_write_bw -d rxe0 -x 1 b"""
_NODE_TEXT = """\
One machine: rxe0 on v0 (10.0.0.1) and rxe1 on v1 (10.0.0.2), joined by a veth pair; exit ends the lab. Try:
ib_write_bw -d rxe1 -x 1 & sleep 2; ib_write_bw -d rxe0 -x 1 10.0.0.2"""


class Session:
    """A shell on each machine, one of them on the screen."""

    def __init__(self, machines: list[Machine]) -> None:
        self._names = [machine.name for machine in machines]
        self._waiting = [bytearray() for _ in machines]
        self._shown = 0
        self._shells = [self._start(i, machine) for i, machine in enumerate(machines)]

    def run(self) -> None:
        """Pass keys and output between the terminal and the shells until one of these ends."""
        before = termios.tcgetattr(0)
        signal.signal(signal.SIGWINCH, lambda *_: self._resize())
        tty.setraw(0)
        try:
            while all(shell.poll() is None for shell in self._shells):
                ready, _, _ = select.select([0], [], [], 0.1)
                if ready:
                    keys = os.read(0, 4096)
                    if not keys:
                        return
                    self._type(keys)
        finally:
            termios.tcsetattr(0, termios.TCSADRAIN, before)

    def _start(self, i: int, machine: Machine) -> Process:
        venv = image.REPOSITORY / ".venv"
        environment = {"TERM": os.environ.get("TERM", "dumb"), "PS1": r"[\h] \w# "}
        if venv.is_dir():
            environment["PATH"] = f"{venv}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return machine.spawn(
            ["bash", "--norc", "-i"],
            environment=environment,
            terminal=_size(),
            on_output=lambda data: self._show(i, data),
        )

    def _show(self, i: int, data: bytes) -> None:
        if i == self._shown:
            _write(data)
        else:
            self._waiting[i] += data

    def _type(self, keys: bytes) -> None:
        if len(self._shells) == 1:
            self._shells[0].write(keys)
            return
        first, *rest = keys.split(_SWITCH)
        self._shells[self._shown].write(first)
        for part in rest:
            self._shown = 1 - self._shown
            _write(f"\r\n[now on {self._names[self._shown]}; Enter shows its prompt]\r\n".encode())
            _write(bytes(self._waiting[self._shown]))
            self._waiting[self._shown].clear()
            self._shells[self._shown].write(part)

    def _resize(self) -> None:
        for shell in self._shells:
            shell.resize(*_size())


def _size() -> tuple[int, int]:
    columns, rows = os.get_terminal_size(0)
    return rows, columns


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def _end(*_: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)


def main() -> int:
    """Boot the chosen lab and give the terminal to it; return the exit status."""
    parser = argparse.ArgumentParser(description="An interactive shell in the soft-RoCE lab.")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--node", action="store_true", help="one machine, two rxe devices (the default)")
    kind.add_argument("--pair", action="store_true", help="two machines joined by a cable")
    chosen = parser.parse_args()
    if not (os.isatty(0) and os.isatty(1)):
        parser.error("needs a terminal")
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGHUP, _end)
    try:
        _write(b"Booting ...\n")
        made = image.prepare()
        with (topology.pair if chosen.pair else topology.node)(made, image.logs_folder()) as wire:
            machines = [wire.a.machine, wire.b.machine] if chosen.pair else [wire.a.machine]
            _write(f"{_PAIR_TEXT if chosen.pair else _NODE_TEXT}\n".encode())
            Session(machines).run()
    except image.LabError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
