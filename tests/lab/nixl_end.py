"""Run in a lab machine: one end of NIXL transfers, a new agent for each line on standard input.

`python -m tests.lab.nixl_end prefill|decode PEER_ADDRESS FOLDER`. A line has UCX's transports, its device and how many
transfers to make: `rc rxe0:1 24`. prefill writes blocks of its memory into decode's, and appends a record of each
transfer to FOLDER/requests.jsonl. Both answer with a line of JSON, `ready` once the agents know each other and the
first transfer is through, `done` after the others, and wait for a further line after each.
"""

import json
import os
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from kvdiag_probes.demo import nixl_import

PORT, BLOCK, BLOCKS, POOL = 7201, 65536, 8, 4 << 20
role, peer_address, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
_LENGTH = struct.Struct(">I")


def connect() -> socket.socket:
    if role == "decode":
        with socket.create_server(("", PORT)) as listener:
            return listener.accept()[0]
    while True:
        try:
            return socket.create_connection((peer_address, PORT))
        except OSError:
            time.sleep(0.2)


def exchange(connection: socket.socket, data: bytes) -> bytes:
    """Send a message and return the other end's."""
    connection.sendall(_LENGTH.pack(len(data)) + data)
    with connection.makefile("rb") as file:
        return file.read(*_LENGTH.unpack(file.read(_LENGTH.size)))


class Agent:
    def __init__(self, name: str, connection: socket.socket) -> None:
        nixl = nixl_import.api()
        self.agent: Any = nixl.nixl_agent(name, nixl.nixl_agent_config(enable_prog_thread=False))
        self.memory = np.full(POOL, 7, dtype=np.uint8)
        address = self.memory.ctypes.data
        self.agent.register_memory([(address, POOL, 0, "")], "DRAM")
        mine = json.dumps({"address": address, "metadata": self.agent.get_agent_metadata().hex()})
        theirs = json.loads(exchange(connection, mine.encode()))
        self.peer = self.agent.add_remote_agent(bytes.fromhex(theirs["metadata"]))
        self.blocks = [(address + 2 * i * BLOCK, BLOCK, 0) for i in range(BLOCKS)]
        self.far_blocks = [(theirs["address"] + 2 * i * BLOCK, BLOCK, 0) for i in range(BLOCKS)]

    def write(self, number: int) -> float:
        """Write all blocks to the other end, and return how long it took in seconds."""
        local = self.agent.get_xfer_descs(self.blocks, "DRAM")
        remote = self.agent.get_xfer_descs(self.far_blocks, "DRAM")
        start_s = time.monotonic()
        handle = self.agent.initialize_xfer("WRITE", local, remote, self.peer, str(number).encode())
        state = self.agent.transfer(handle)
        while state == "PROC":
            state = self.agent.check_xfer_state(handle)
        assert state == "DONE", state
        took_s = time.monotonic() - start_s
        self.agent.release_xfer_handle(handle)
        return took_s

    def await_writes(self, count: int) -> None:
        """Wait for so many notifications."""
        while count > 0:
            count -= sum(len(messages) for messages in self.agent.get_new_notifs().values())


def record(number: int, took_s: float) -> dict[str, object]:
    """Return the record of one transfer."""
    now_s = time.time()
    return {
        "request_id": f"{os.getpid()}-{number}", "arrival_s": now_s - took_s, "ttft_s": took_s, "wire_s": took_s,
        "prefill_node": "prefill-0", "decode_node": "decode-0", "direction": "push", "bytes": BLOCK * BLOCKS,
        "descriptors": BLOCKS,
    }  # fmt: skip


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)  # noqa: T201


def main() -> None:
    connection = connect()
    made = 0
    for line in sys.stdin:
        tls, device, text = line.split()
        nixl_import.set_environment(tls, device, folder / "telemetry", 19400)
        agent = Agent(f"{role}-{tls}", connection)
        for state, count in (("ready", 1), ("done", int(text))):
            if role == "decode":
                agent.await_writes(count)
            else:
                with (folder / "requests.jsonl").open("a") as file:
                    for _ in range(count):
                        made += 1
                        file.write(json.dumps(record(made, agent.write(made))) + "\n")
            say(state=state, transfers=count, bytes=count * BLOCK * BLOCKS, registered=POOL)
            sys.stdin.readline()
        exchange(connection, b"over")
        del agent


main()
os._exit(0)
