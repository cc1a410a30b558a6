"""The faults: each begins when its block is entered and is over when it is left."""

import os
import random
import resource
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.exporters.chaos import clients
from tests.exporters.chaos.engine import MODES
from tests.exporters.chaos.world import World

ENGINE_LIMIT_S = 3.0
"""How long the exporter waits for an engine: a reading that hangs is over then, and the next one is whole."""
COLLECTOR_LIMIT_S = 5.0


@dataclass
class Target:
    """The running exporter: its process, and the addresses of its listeners by name."""

    world: World
    pid: int
    addresses: dict[str, str]
    choose: random.Random
    scrape: Callable[[str], None]


Fault = Callable[[Target], AbstractContextManager[None]]


@contextmanager
def _trouble(target: Target, group: str, settle_s: float = 0.0) -> Iterator[None]:
    number = target.world.troubles.begin(group)
    try:
        yield
    finally:
        target.world.troubles.end(group, number, settle_s)


def _damage(path: Path, kind: str, choose: random.Random) -> None:
    if kind == "folder":
        path.unlink()
        path.mkdir()
    elif kind == "vanished":
        path.unlink()
    else:
        # Never something that could be read as a number.
        content = {"binary": bytes(choose.randrange(128, 256) for _ in range(200)), "empty": b"", "N/A": b"N/A\n"}
        path.write_bytes(content[kind])


def files(group: str) -> Fault:
    """Vanished, binary, empty, unreadable: some files of a group."""

    @contextmanager
    def fault(target: Target) -> Iterator[None]:
        world = target.world
        with _trouble(target, group):
            with world.writing:
                free = [one for one in world.files[group] if one not in world.struck]
                struck = target.choose.sample(free, min(len(free), target.choose.randrange(1, 6)))
                for path in struck:
                    world.strike(path)
                    kinds = ["vanished", "binary", "folder", "N/A"] + ["empty"] * (path.name != "children")
                    _damage(path, target.choose.choice(kinds), target.choose)
            yield
            for path in struck:
                world.heal(path)

    fault.__name__ = f"files of {group}"
    return fault


@contextmanager
def port_gone(target: Target) -> Iterator[None]:
    """Take away a whole RDMA device, as a driver that is loaded again."""
    world = target.world
    with _trouble(target, "host"), world.writing:
        device = target.choose.choice(sorted((world.folder / "host/root/sys/class/infiniband").iterdir())).resolve()
        with _moved_away(world, device, world.templates):
            yield


@contextmanager
def _moved_away(world: World, folder: Path, files: Iterable[Path]) -> Iterator[None]:
    """Take a folder away with those of these files that are in it; nothing is done where another fault has one."""
    inside = [one for one in files if folder in one.parents]
    if set(inside) & world.struck:
        yield
        return
    world.struck.update(inside)
    away = world.folder / f"away-{folder.name}"
    folder.rename(away)
    with _released(world):
        yield
    world.come_back(away, folder, inside)


@contextmanager
def _released(world: World) -> Iterator[None]:
    """Let others write meanwhile."""
    world.writing.release()
    try:
        yield
    finally:
        world.writing.acquire()


@contextmanager
def process_gone(target: Target) -> Iterator[None]:
    """Let the engine's process end, and come again under its pid."""
    world = target.world
    with _trouble(target, "process"), world.writing:
        files = (*world.templates, *world.files["process"])
        with _moved_away(world, world.folder / "host/root/proc/121", files):
            yield


@contextmanager
def counters_reset(target: Target) -> Iterator[None]:
    """Let the host's counters begin again: no series is missing, each shows the new number."""
    target.world.advance(1)
    yield


@contextmanager
def hung_read(target: Target) -> Iterator[None]:
    """Let the reading of one file hang: only its collector stands still."""
    world = target.world
    with world.writing:
        path = target.choose.choice([one for one in world.files["host"] if one not in world.struck])
        world.strike(path)
    with _trouble(target, "host", COLLECTOR_LIMIT_S):
        beside = world.folder / "fifo"
        os.mkfifo(beside)
        beside.replace(path)
        try:
            yield
        finally:
            with suppress(OSError):  # whoever waits at its other end goes on
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            world.heal(path)


def engine(name: str) -> Fault:
    """Bad answers of every kind, then good ones."""

    @contextmanager
    def fault(target: Target) -> Iterator[None]:
        one = target.world.engines[name]
        mode = target.choose.choice(MODES)
        with _trouble(target, f"engine {name}", 0.0 if mode not in ("hang", "drip", "endless") else ENGINE_LIMIT_S):
            one.mode = mode
            yield
            one.mode = "well"
            one.woken.set()
            one.woken.clear()

    fault.__name__ = f"answers of {name}"
    return fault


def engine_killed(name: str) -> Fault:
    """Nobody listens; then the engine is back, and counts from its beginning."""

    @contextmanager
    def fault(target: Target) -> Iterator[None]:
        one = target.world.engines[name]
        with _trouble(target, f"engine {name}"):
            one.kill()
            yield
            one.advance(1)
            one.revive()

    fault.__name__ = f"{name} killed"
    return fault


@contextmanager
def engine_restarted(target: Target) -> Iterator[None]:
    """Let an engine's counters begin again between two readings."""
    target.world.engines["vllm-decode"].advance(1)
    yield


@contextmanager
def clock_steps(target: Target) -> Iterator[None]:
    """Step the wall clock by a second, an hour, days or decades, forth or back."""
    step_s = target.choose.choice((1.0, 3600.0, 86400.0 * 40, 6e8))
    target.world.step_clock(target.choose.choice((-step_s, step_s)))
    yield
    target.world.step_clock(0.0)


@contextmanager
def disk_full(target: Target) -> Iterator[None]:
    """Let every file that the exporter writes be full where it is now."""
    soft, hard = resource.prlimit(target.pid, resource.RLIMIT_FSIZE)
    written = sum(one.stat().st_size for one in (target.world.folder / "bundle").rglob("*.jsonl"))
    resource.prlimit(target.pid, resource.RLIMIT_FSIZE, (target.choose.randrange(written + 2), hard))
    yield
    resource.prlimit(target.pid, resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def bundle_removed(target: Target) -> Iterator[None]:
    """Remove what is being recorded."""
    for path in (target.world.folder / "bundle").iterdir():
        shutil.rmtree(path, ignore_errors=True)
    yield


@contextmanager
def suspended(target: Target) -> Iterator[None]:
    """Stop the whole process, as a machine that swaps or moves."""
    with _trouble(target, "scrapes"):
        os.kill(target.pid, signal.SIGSTOP)
        yield
        os.kill(target.pid, signal.SIGCONT)


@contextmanager
def slow_scrapers(target: Target) -> Iterator[None]:
    """Ask for everything and read a byte now and then."""
    with ExitStack() as held, suppress(OSError):
        sockets = [clients.connect(held, target.addresses["metrics"]) for _ in range(40)]
        over = threading.Event()

        def read() -> None:
            for one in sockets:
                with suppress(OSError):
                    one.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            while not over.wait(0.2):
                for one in sockets:
                    with suppress(OSError):
                        one.recv(1, socket.MSG_DONTWAIT)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        yield
        over.set()
        reader.join()


@contextmanager
def crowd(target: Target) -> Iterator[None]:
    """Scrape a hundred times at once, and judge each."""
    threads = [threading.Thread(target=target.scrape, args=("in a crowd",)) for _ in range(100)]
    for one in threads:
        one.start()
    yield
    for one in threads:
        one.join()


def half_open(name: str) -> Fault:
    """Open connections that begin to say something and then do not."""

    @contextmanager
    def fault(target: Target) -> Iterator[None]:
        with ExitStack() as held:
            for number in range(120):
                with suppress(OSError):
                    one = clients.connect(held, target.addresses[name])
                    one.sendall(clients.BEGINNINGS[number % len(clients.BEGINNINGS)])
            yield

    fault.__name__ = f"half-open clients of {name}"
    return fault


@contextmanager
def hostile_exports(target: Target) -> Iterator[None]:
    """Send compressed bombs, broken and endless bodies, and foreign protocols to both receivers."""
    for name in ("otlp_http", "otlp_grpc", "metrics"):
        for hostile in clients.HOSTILE:
            with suppress(OSError), ExitStack() as held:
                one = clients.connect(held, target.addresses[name])
                one.sendall(hostile)
                one.settimeout(0.2)
                one.recv(65536)
    yield


ALL: tuple[Fault, ...] = (
    files("host"), files("host"), files("process"), files("nixl"), port_gone, process_gone, counters_reset, hung_read,
    engine("vllm-prefill"), engine("vllm-decode"), engine("vllm-decode"), engine_killed("vllm-prefill"),
    engine_killed("vllm-decode"), engine_restarted, clock_steps, disk_full, bundle_removed, suspended, slow_scrapers,
    crowd, half_open("otlp_http"), half_open("otlp_grpc"), half_open("metrics"), hostile_exports,
)  # fmt: skip


def name_of(fault: Fault) -> str:
    return str(getattr(fault, "__name__", fault)).replace("_", " ")
