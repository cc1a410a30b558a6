"""One end of a demo whose two processes are in two machines: starts the worker, and carries its messages.

`python -m tests.lab.demo_end prefill|decode SETTINGS ADDRESS`: decode listens on its own ADDRESS, prefill connects to
decode's. The two ends first compare their monotonic clocks; then what the workers tell each other goes over that
connection. Commands come on standard input, one a line: `configure DEVICE ADDRESS`, `begin SECONDS`, `degrade FAULT`;
what the worker says goes to standard output, the pid first. Ends with its input.
"""

import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from kvdiag_probes.demo import tether, worker
from kvdiag_probes.demo.channel import AnyMessage, Begin, Channel, Closed, Configure, Degrade, Failed, Finished
from kvdiag_probes.demo.settings import Settings

PORT = 7101
CLOCK_READINGS = 200
_LENGTH = struct.Struct(">I")
_NS = struct.Struct(">q")


def connect(role: str, address: str) -> socket.socket:
    """Return the connection to the other end."""
    if role == "decode":
        with socket.create_server((address, PORT)) as listener:
            listener.settimeout(120)
            connection, _ = listener.accept()
    else:
        deadline_s = time.monotonic() + 120
        while True:
            try:
                connection = socket.create_connection((address, PORT), timeout=5)
                break
            except OSError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.2)
    connection.setblocking(True)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def exactly(connection: socket.socket, size: int) -> bytes:
    """Return so many bytes; Closed at the end."""
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise Closed
        data += more
    return data


def clock_offset_ns(role: str, connection: socket.socket) -> int:
    """Return what decode's monotonic clock is ahead of prefill's, at decode, by the shortest of many round trips."""
    if role == "prefill":
        for _ in range(CLOCK_READINGS):
            exactly(connection, 1)
            connection.sendall(_NS.pack(time.monotonic_ns()))
        return 0
    readings: list[tuple[int, int]] = []
    for _ in range(CLOCK_READINGS):
        sent_ns = time.monotonic_ns()
        connection.sendall(b"?")
        (there_ns,) = _NS.unpack(exactly(connection, _NS.size))
        back_ns = time.monotonic_ns()
        readings.append((back_ns - sent_ns, (sent_ns + back_ns) // 2 - there_ns))
    _, offset_ns = min(readings)
    return offset_ns


def carry(orchestrator: Channel, peer: Channel, connection: socket.socket) -> None:
    """Carry messages until standard input or one of the channels ends."""
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(AnyMessage)
    waiting = b""
    sources: list[Any] = [0, orchestrator, peer, connection]
    while True:
        ready, _, _ = select.select(sources, [], [])
        if connection in ready:
            peer.send(decoder.decode(exactly(connection, *_LENGTH.unpack(exactly(connection, _LENGTH.size)))))
        for message in peer.poll():
            packet = encoder.encode(message)
            connection.sendall(_LENGTH.pack(len(packet)) + packet)
        for message in orchestrator.poll():
            detail = message.reason if isinstance(message, Failed) else ""
            detail = str(message.requests) if isinstance(message, Finished) else detail
            say(f"{type(message).__name__} {detail}")
        if 0 in ready:
            data = os.read(0, 4096)
            if not data:
                return
            *lines, waiting = (waiting + data).split(b"\n")
            for line in lines:
                command(orchestrator, line.decode().split())


def command(orchestrator: Channel, words: list[str]) -> None:
    """Pass a command on to the worker."""
    if words[0] == "configure":
        orchestrator.send(Configure(words[1], words[2]))
    elif words[0] == "begin":
        orchestrator.send(Begin(time.monotonic_ns() + round(float(words[1]) * 1e9)))
    else:
        orchestrator.send(Degrade(words[1]))


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(role: str, settings_file: Path, address: str) -> None:
    connection = connect(role, address)
    offset_ns = clock_offset_ns(role, connection)
    settings = msgspec.structs.replace(Settings.read(settings_file), clock_offset_ns=offset_ns)
    own = settings_file.with_suffix(f".{role}.json")
    settings.write(own)
    near, far = Channel.pair()
    peer, peer_far = Channel.pair()
    line = worker.command_line(role, own, far, peer_far)
    process = subprocess.Popen(
        tether.wrap(line, on_parent_death=signal.SIGKILL),
        pass_fds=(far.fileno(), peer_far.fileno()),
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
    )
    far.close()
    peer_far.close()
    say(f"pid {process.pid}")
    try:
        carry(near, peer, connection)
    except Closed:
        say("Closed")
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
