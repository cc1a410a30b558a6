"""Run in a lab machine: for each line on standard input register memory and set up queue pairs, and tell the times.

Arguments: DEVICE GID_INDEX. A line has two numbers: how many regions of 16 MiB are registered and deregistered, and how
many times two queue pairs are connected. Two registrations that fail follow: of no memory, and without local write.
The answer is a line of JSON with the seconds of every call that worked.
"""

import contextlib
import ctypes
import json
import sys
import time
from pathlib import Path
from typing import Any

from kvdiag_probes.ib_pairs import Pairs
from kvdiag_probes.libibverbs import LOCAL_WRITE, REMOTE_WRITE, Domain, RegistrationRefusedError

SIZE = 16 << 20
device, gid_index = sys.argv[1], int(sys.argv[2])
gid = Path(f"/sys/class/infiniband/{device}/ports/1/gids/{gid_index}").read_text().strip()


def main() -> None:
    memory = ctypes.create_string_buffer(SIZE)
    ctypes.memset(memory, 1, SIZE)
    address = ctypes.addressof(memory)
    with Domain(device) as domain:
        pairs = Pairs(domain, 1, gid_index, gid)
        domain.deregister(domain.register(address, SIZE))
        print("ready", flush=True)  # noqa: T201
        for line in sys.stdin:
            regions, rounds = map(int, line.split())
            print(json.dumps(work(domain, pairs, address, regions, rounds)), flush=True)  # noqa: T201
        pairs.close()


def work(domain: Domain, pairs: Pairs, address: int, regions: int, rounds: int) -> dict[str, list[float]]:
    took_s: dict[str, list[float]] = {}

    def timed(name: str, call: Any, *arguments: Any) -> Any:
        start_s = time.perf_counter()
        made = call(*arguments)
        took_s.setdefault(name, []).append(time.perf_counter() - start_s)
        return made

    for _ in range(regions):
        timed("dereg_mr", domain.deregister, timed("reg_mr", domain.register, address, SIZE))
    for _ in range(rounds):
        one, other = (timed("create_qp", pairs.create) for _ in range(2))
        for pair in (one, other):
            timed("modify_qp_init", pairs.to_init, pair)
        for pair, far in ((one, other), (other, one)):
            timed("modify_qp_rtr", pairs.to_rtr, pair, far)
            timed("modify_qp_rts", pairs.to_rts, pair)
        for pair in (one, other):
            pairs.destroy(pair)
    for where, access in ((4096, LOCAL_WRITE), (address, REMOTE_WRITE)):
        with contextlib.suppress(RegistrationRefusedError):
            domain.register(where, SIZE, access)
    return took_s


main()
