"""Two real NIXL agents in one process: register, transfer as told, say so, and live on until standard input ends.

Arguments: WRITES READS REGIONS. Each transfer moves 4 blocks of 64 KiB; each region is 1 MiB.
"""

import os
import sys
import time

import numpy as np
from nixl_cu12._api import nixl_agent, nixl_agent_config

BLOCK, BLOCKS, REGION = 65536, 4, 1 << 20

writes, reads, regions = (int(argument) for argument in sys.argv[1:])
initiator = nixl_agent("prefill-0", nixl_agent_config(enable_prog_thread=False))
target = nixl_agent("decode-0", nixl_agent_config(enable_prog_thread=False))
memory = [np.full(REGION, i, dtype=np.uint8) for i in range(regions + 1)]
for array in memory[:-1]:
    initiator.register_memory([(array.ctypes.data, REGION, 0, "")], "DRAM")
target.register_memory([(memory[-1].ctypes.data, REGION, 0, "")], "DRAM")
peer = initiator.add_remote_agent(target.get_agent_metadata())


def blocks(array: np.ndarray) -> list[tuple[int, int, int]]:
    """Return every second block of a region, so that none can be merged."""
    return [(array.ctypes.data + 2 * i * BLOCK, BLOCK, 0) for i in range(BLOCKS)]


for operation in ["WRITE"] * writes + ["READ"] * reads:
    local = initiator.get_xfer_descs(blocks(memory[0]), "DRAM")
    remote = initiator.get_xfer_descs(blocks(memory[-1]), "DRAM")
    handle = initiator.initialize_xfer(operation, local, remote, peer)
    state = initiator.transfer(handle)
    while state == "PROC":
        target.get_new_notifs()
        state = initiator.check_xfer_state(handle)
        time.sleep(0.001)
    assert state == "DONE", state
    initiator.release_xfer_handle(handle)
print("done", flush=True)  # noqa: T201
sys.stdin.read()
os._exit(0)
