"""The demo's workload between two machines over soft-RoCE: prefill on `a`, decode on `b`, an exporter beside each.

What emulation makes slow is made small: prompts of a thirty-second part of the demo's, four requests a second.
"""

import json
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCONT, SIGSTOP

import msgspec

from kvdiag_probes.demo.settings import DECODE_NODE, PREFILL_NODE, Settings
from kvdiag_probes.demo.sidecar import configuration
from kvdiag_probes.demo.workload import draw
from tests.lab.image import LabError
from tests.lab.process import Process
from tests.lab.topology import Wire

KINDS = ("none", "loss", "delay", "link", "registration", "layout", "pause", "tcp")
NETEM = {"loss": "loss 2%", "delay": "delay 20ms limit 20000", "link": "rate 10mbit limit 20000"}
PAUSE_S, PAUSE_EVERY_S = 0.4, 1.6
INTERVAL_S = 2.0
MARGIN_S = 3.0
"""The machines' clocks are up to a second apart."""
TCP_DEVICE = "eth1"
TCP_NETEM = "rate 10mbit limit 20000"
"""Where TCP is what is left, it is often over the network of the hosts' management: a slower one."""
SETTLE_S = 7.0
"""Between two kinds: what piled up drains, what was recorded is written out, and neither has a share in the next."""
RATE, PROMPT_SCALE = 4.0, 1 / 32
POLL_S = 0.003
"""An emulated processor that looks more often has no time left for the packets."""
_START_S = 600.0
_FOLDER = "/tmp/demo"
# NIXL's wheel brings a libibverbs of its own, which cannot load Debian's driver of soft-RoCE.
_ENVIRONMENT = {"LD_PRELOAD": "/usr/lib/x86_64-linux-gnu/libibverbs.so.1"}


@dataclass(frozen=True, slots=True)
class Part:
    """One kind's share of a recording: seconds after the workload's begin, and from when on the fault was there."""

    name: str
    kind: str
    begin_s: float
    fault_s: float
    end_s: float


def record(wire: Wire, kinds: Sequence[str], seed: int, seconds: float, folder: Path) -> Iterator[Part]:
    """Serve one workload, a kind after the other for so many seconds each, its fault in the second half.

    Yields each part when FOLDER/NUMBER-KIND is its bundle. To start four Pythons takes an emulated machine minutes,
    so any number of kinds, each any number of times, shares one start. Raises LabError.
    """
    settings = Settings(
        transport="nixl",
        seed=seed,
        rate=RATE,
        duration_s=(seconds + SETTLE_S) * len(kinds) + 5,
        telemetry=f"{_FOLDER}/telemetry",
        telemetry_port=19400,
        records=f"{_FOLDER}/requests.jsonl",
        tls="rc",
        tcp_device=TCP_DEVICE if "tcp" in kinds else "",
        prompt_scale=PROMPT_SCALE,
        poll_s=POLL_S,
    )
    first_s = draw(seed, RATE, settings.duration_s, scale=PROMPT_SCALE)[0].offset_s
    with _slow_network(wire), _workers(wire, settings) as (prefill, decode, pids), _exporters(wire, pids):
        for one in (prefill, decode):
            one.wait_for("^Ready", _START_S)
        prefill.write(b"begin 1\n")
        zero_s = time.monotonic() + 1
        recording = Recording(wire, folder / "whole")
        for number, kind in enumerate(kinds):
            begin_s = (seconds + SETTLE_S) * number
            _sleep_until(zero_s + begin_s + seconds / 2)
            fault_s = time.monotonic() - zero_s
            with _fault(wire, kind, prefill, pids[1]):
                _sleep_until(zero_s + begin_s + seconds)
            part = Part(f"{number}-{kind}", kind, begin_s, fault_s, begin_s + seconds)
            _sleep_until(zero_s + part.end_s + SETTLE_S - 2)
            _check(prefill, decode)
            recording.fetch()
            cut(folder, (part,), first_s)
            yield part


def _check(*workers: Process) -> None:
    if any(one.poll() is not None or re.search("^(Failed|Closed)", one.log(), re.MULTILINE) for one in workers):
        raise LabError("ended early: " + "; ".join(f"{one.title!r}: {one.log().strip()[-800:]}" for one in workers))


def cut(folder: Path, parts: Sequence[Part], first_offset_s: float) -> None:
    """Leave FOLDER/NAME with each part of the bundle FOLDER/whole; its first request came `first_offset_s` in."""
    whole = folder / "whole"
    rows = [json.loads(line) for line in (whole / "requests.jsonl").read_text().splitlines()]
    counters = [json.loads(line) for line in (whole / "counters.jsonl").read_text().splitlines()]
    zero_s = min(row["arrival_s"] for row in rows) - first_offset_s
    for part in parts:
        bundle = folder / part.name
        bundle.mkdir()
        begin_s, end_s = zero_s + part.begin_s, zero_s + part.end_s
        _write(bundle / "requests.jsonl", [row for row in rows if begin_s <= row["arrival_s"] < end_s])
        near = [row for row in counters if begin_s - MARGIN_S <= row["time_s"] < end_s + MARGIN_S]
        _write(bundle / "counters.jsonl", near)
        (bundle / "meta.json").write_bytes((whole / "meta.json").read_bytes())


def _write(path: Path, rows: Sequence[object]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def _sleep_until(monotonic_s: float) -> None:
    time.sleep(max(0.0, monotonic_s - time.monotonic()))


@contextmanager
def _slow_network(wire: Wire) -> Iterator[None]:
    """Bring up the second cable, without RDMA, as a slower network."""
    try:
        for end, address in zip(wire.ends, ("10.2.0.1", "10.2.0.2"), strict=True):
            up = f"ip link set {TCP_DEVICE} up && ip addr replace {address}/24 dev {TCP_DEVICE}"
            end.machine.run(f"{up} && tc qdisc replace dev {TCP_DEVICE} root netem {TCP_NETEM}", check=True)
        yield
    finally:
        for end in wire.ends:
            down = f"tc qdisc del dev {TCP_DEVICE} root; ip addr flush dev {TCP_DEVICE}; ip link set {TCP_DEVICE} down"
            end.machine.run(down)


@contextmanager
def _workers(wire: Wire, settings: Settings) -> Iterator[tuple[Process, Process, tuple[int, int]]]:
    running = []
    try:
        for end, role in ((wire.b, "decode"), (wire.a, "prefill")):
            end.machine.run(f"rm -rf {_FOLDER}; mkdir -p {_FOLDER}/telemetry", check=True)
            end.machine.put(msgspec.json.encode(settings), f"{_FOLDER}/settings.json")
            line = [sys.executable, "-m", "tests.lab.demo_end", role, f"{_FOLDER}/settings.json", wire.b.address]
            running.append(end.machine.spawn(line, stdin=True, environment=_ENVIRONMENT))
        decode, prefill = running
        pids = (int(prefill.wait_for(r"^pid (\d+)", _START_S)[1]), int(decode.wait_for(r"^pid (\d+)", _START_S)[1]))
        for one, end in ((prefill, wire.a), (decode, wire.b)):
            one.wait_for("^Started", _START_S)
            one.write(f"configure {end.device}:1 {end.address}\n".encode())
        yield prefill, decode, pids
    finally:
        for one in running:
            one.kill()


@contextmanager
def _exporters(wire: Wire, pids: tuple[int, int]) -> Iterator[None]:
    running: list[Process] = []
    try:
        for end, node, pid in ((wire.a, PREFILL_NODE, pids[0]), (wire.b, DECODE_NODE, pids[1])):
            engine: dict[str, object] = {
                "name": node,
                "role": node.split("-")[0],
                "pid": pid,
                "nixl_telemetry": f"{_FOLDER}/telemetry/{node}",
            }
            if node == DECODE_NODE:
                engine["records"] = f"{_FOLDER}/requests.jsonl"
            address = f"{_FOLDER}/exporter.address"
            text = configuration({node: engine}, Path(address), Path(_FOLDER) / "bundle", INTERVAL_S)
            end.machine.put(f'node = "{node}"\n{text}'.encode(), f"{_FOLDER}/exporter.toml")
            line = f"exec {sys.executable} -m kvdiag exporter --config {_FOLDER}/exporter.toml"
            running.append(end.machine.spawn(line))
        for end in wire.ends:
            wait = f"until [ -s {_FOLDER}/exporter.address ]; do sleep 0.2; done"
            end.machine.run(wait, _START_S, check=True)
        yield
    finally:
        for one in running:
            one.kill()


@contextmanager
def _fault(wire: Wire, kind: str, prefill: Process, decode_pid: int) -> Iterator[None]:
    if kind in NETEM:
        with wire.a.netem(NETEM[kind]):
            yield
    elif kind == "pause":
        line = f"while kill -{int(SIGSTOP)} {decode_pid}; do sleep {PAUSE_S}; kill -{int(SIGCONT)} {decode_pid}; "
        pauses = wire.b.machine.spawn(f"{line}sleep {PAUSE_EVERY_S - PAUSE_S}; done")
        try:
            yield
        finally:
            pauses.kill()
            wire.b.machine.run(f"kill -{int(SIGCONT)} {decode_pid}")
    else:
        prefill.write(f"degrade {kind}\n".encode())
        try:
            yield
        finally:
            prefill.write(b"degrade none\n")


class Recording:
    """Both machines' recordings put together in one bundle: decode's requests, both nodes' counters on their clocks."""

    def __init__(self, wire: Wire, bundle: Path) -> None:
        bundle.mkdir(parents=True)
        self._wire, self._bundle = wire, bundle
        self._fetched: dict[tuple[str, str], int] = defaultdict(int)

    def fetch(self) -> None:
        """Add what was recorded since the last time, as far as the last whole line; raises LabError."""
        metas = []
        for end in self._wire.ends:
            folder = f"{_FOLDER}/bundle"
            for name in end.machine.run(["ls", folder], check=True).stdout.split():
                if name == "meta.json":
                    metas.append(json.loads(end.machine.get(f"{folder}/{name}")))
                    continue
                key = (end.machine.name, name)
                added = end.machine.run(["tail", "-c", f"+{self._fetched[key] + 1}", f"{folder}/{name}"], check=True)
                lines = added.stdout[: added.stdout.rfind("\n") + 1].encode()
                self._fetched[key] += len(lines)
                with (self._bundle / name).open("ab") as file:
                    file.write(lines)
        meta = metas[1] | {name: metas[0][name] | metas[1][name] for name in ("nodes", "metrics")}
        (self._bundle / "meta.json").write_text(json.dumps(meta))
