"""The lab's two test beds, alike to a test: two ends, each an rxe device with an address, joined by a wire.

A node is one machine with both ends in it; a pair is two machines, for tests where two kernels matter.
"""

import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.lab.image import Image, LabError
from tests.lab.machine import Cable, Machine

__all__ = ["End", "Wire", "node", "pair", "second_rail", "with_memlock"]

_ADDRESSES = ("10.0.0.1", "10.0.0.2")
_RAIL_ADDRESSES = ("10.2.0.1", "10.2.0.2")


@dataclass(frozen=True)
class End:
    """One end of the wire."""

    machine: Machine
    netdev: str
    device: str
    address: str

    def counters(self) -> dict[str, int]:
        """Return the rxe device's hw_counters (packets and events since boot)."""
        folder = f"/sys/class/infiniband/{self.device}/ports/1/hw_counters"
        lines = self.machine.run(f"cd {folder} && grep -H . *", check=True).stdout.splitlines()
        pairs = (line.split(":", 1) for line in lines)
        return {name: int(value) for name, value in pairs if name != "lifespan"}

    def port_state(self) -> str:
        """Return the port's state as the kernel names it: ACTIVE, DOWN, …."""
        path = f"/sys/class/infiniband/{self.device}/ports/1/state"
        return self.machine.run(["cat", path], check=True).stdout.split(":")[1].strip()

    def await_port(self, state: str, timeout_s: float = 10.0) -> None:
        """Wait until the port is in a state; raises LabError past the limit."""
        deadline = time.monotonic() + timeout_s
        while (now := self.port_state()) != state:
            if time.monotonic() > deadline:
                raise LabError(f"{self.device} of {self.machine.name} is {now}, not {state}, after {timeout_s:g} s")
            time.sleep(0.1)

    def gid_index(self) -> int:
        """Return the index of the RoCE v2 GID that carries this end's IPv4 address; raises LabError."""
        digits = "".join(f"{int(part):02x}" for part in self.address.split("."))
        gid = f"0000:0000:0000:0000:0000:ffff:{digits[:4]}:{digits[4:]}"
        folder = f"/sys/class/infiniband/{self.device}/ports/1/gids"
        found = self.machine.run(f"cd {folder} && grep -lx {gid} *").stdout.split()
        if not found:
            raise LabError(f"{self.device} of {self.machine.name} has no GID {gid}")
        return int(found[0])

    @contextmanager
    def netem(self, spec: str) -> Iterator[None]:
        """Spoil what this end sends, as tc-netem(8) writes it ("loss 3%", "delay 5ms rate 20mbit"), for a while."""
        tc = f"tc qdisc replace dev {self.netdev} root netem {spec}"
        self.machine.run(tc, check=True)
        try:
            yield
        finally:
            self.machine.run(f"tc qdisc del dev {self.netdev} root", check=True)


@dataclass(frozen=True)
class Wire:
    """Two ends and what joins them."""

    a: End
    b: End

    @property
    def ends(self) -> tuple[End, End]:
        """Both ends."""
        return self.a, self.b

    def set_link(self, up: bool) -> None:
        """Pull the cable out, or plug it in, and wait until both ports know; raises LabError."""
        for end in self.ends:
            if self.a.machine is self.b.machine:
                # One end of a veth down takes the carrier from the other: the ports of both are down.
                end.machine.run(["ip", "link", "set", end.netdev, "up" if up else "down"], check=True)
            else:
                end.machine.set_link(up)
        for end in self.ends:
            end.await_port("ACTIVE" if up else "DOWN")


@contextmanager
def node(image: Image, logs: Path, memory_mib: int = 1536, *, counted: bool = False) -> Iterator[Wire]:
    """Boot one machine whose rxe0 and rxe1 are joined by a veth pair; raises LabError."""
    with Machine("node", image, logs, "veth", memory_mib, counted=counted) as machine:
        ends = (End(machine, f"v{i}", f"rxe{i}", _ADDRESSES[i]) for i in (0, 1))
        yield Wire(*ends)


@contextmanager
def pair(image: Image, logs: Path, memory_mib: int = 1536) -> Iterator[Wire]:
    """Boot two machines, a and b, whose rxe0 on eth0 are joined by a cable; raises LabError.

    A second cable lies between both eth1, which are down: see `second_rail`.
    """
    # Unix socket paths are short by law, so they do not go below the logs.
    sockets = Path(tempfile.mkdtemp(prefix="kvdiag-lab-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, sockets)
        machines = []
        for i, name in enumerate("ab"):
            cables = [
                Cable(sockets / f"{name}{n}", sockets / f"{'ba'[i]}{n}", f"52:54:00:00:0{n}:0{i + 1}", f"{each[i]}/24")
                for n, each in enumerate((_ADDRESSES, _RAIL_ADDRESSES))
            ]
            machines.append(Machine(name, image, logs, cables, memory_mib))
            stack.callback(machines[i].close)
            machines[i].start()
        for machine in machines:
            machine.wait_ready()
        yield Wire(*(End(machines[i], "eth0", "rxe0", _ADDRESSES[i]) for i in (0, 1)))


@contextmanager
def second_rail(wire: Wire) -> Iterator[Wire]:
    """Bring up the second cable of a pair, an rxe1 at each of its ends, for a while; raises LabError."""
    ends = [End(end.machine, "eth1", "rxe1", address) for end, address in zip(wire.ends, _RAIL_ADDRESSES, strict=True)]
    try:
        for end in ends:
            up = f"ip link set {end.netdev} up && ip addr replace {end.address}/24 dev {end.netdev}"
            end.machine.run(f"{up} && rdma link add {end.device} type rxe netdev {end.netdev}", check=True)
        for end in ends:
            end.await_port("ACTIVE")
        yield Wire(*ends)
    finally:
        for end in ends:
            end.machine.run(f"rdma link delete {end.device}; ip addr flush dev eth1; ip link set eth1 down")


def with_memlock(command: str, limit_bytes: int) -> str:
    """Return a bash command that runs another with RLIMIT_MEMLOCK enforced: still as root, but without CAP_IPC_LOCK."""
    limit = f"prlimit --memlock={limit_bytes}:{limit_bytes}"
    return f"{limit} setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock bash -c {shlex.quote(command)}"
