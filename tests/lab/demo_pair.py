"""The demo's workload between two machines over soft-RoCE: prefill on `a`, decode on `b`, an exporter beside each.

What emulation makes slow is made small: prompts of a thirty-second part of the demo's, one request a second.
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCONT, SIGSTOP, SIGTERM

import msgspec

from kvdiag_probes.demo.settings import DECODE_NODE, PREFILL_NODE, Settings
from kvdiag_probes.demo.sidecar import configuration
from kvdiag_probes.demo.workload import draw
from tests.lab.process import Process
from tests.lab.topology import End, Wire

KINDS = ("none", "loss", "delay", "link", "registration", "layout", "pause", "tcp")
NETEM = {"loss": "loss 2%", "delay": "delay 50ms limit 20000", "link": "rate 4mbit limit 20000"}
PAUSE_S, PAUSE_EVERY_S = 0.4, 1.6
INTERVAL_S = 2.0
MARGIN_S = 3.0
"""The machines' clocks are up to a second apart."""
RATE, PROMPT_SCALE = 1.0, 1 / 32
_START_S = 600.0
_FOLDER = "/tmp/demo"
# NIXL's wheel brings a libibverbs of its own, which cannot load Debian's driver of soft-RoCE.
_ENVIRONMENT = {"LD_PRELOAD": "/usr/lib/x86_64-linux-gnu/libibverbs.so.1"}


@dataclass(frozen=True, slots=True)
class Part:
    """One kind's share of a recording: seconds after the workload's begin, and from when on the fault was there."""

    kind: str
    begin_s: float
    fault_s: float
    end_s: float


def record(wire: Wire, kinds: Sequence[str], seed: int, seconds: float, folder: Path) -> tuple[Part, ...]:
    """Serve the workload once, each kind of fault for the second half of so many seconds, and leave a bundle of each.

    To start four Pythons takes an emulated machine minutes. FOLDER/KIND is the bundle; raises LabError.
    """
    settings = Settings(
        transport="nixl",
        seed=seed,
        rate=RATE,
        duration_s=seconds * len(kinds) + 5,
        telemetry=f"{_FOLDER}/telemetry",
        telemetry_port=19400,
        records=f"{_FOLDER}/requests.jsonl",
        tls="rc",
        tcp_device=wire.a.netdev if "tcp" in kinds else "",
        prompt_scale=PROMPT_SCALE,
    )
    with _workers(wire, settings) as (prefill, decode, pids), _exporters(wire, pids) as exporters:
        for one in (prefill, decode):
            one.wait_for("^Ready", _START_S)
        prefill.write(b"begin 1\n")
        zero_s = time.monotonic() + 1
        parts = []
        for number, kind in enumerate(kinds):
            _sleep_until(zero_s + seconds * (number + 0.5))
            fault_s = time.monotonic() - zero_s
            with _fault(wire, kind, prefill, pids[1]):
                _sleep_until(zero_s + seconds * (number + 1))
            parts.append(Part(kind, seconds * number, fault_s, seconds * (number + 1)))
        time.sleep(3 * INTERVAL_S)
        for exporter in exporters:
            exporter.kill(SIGTERM)
        for exporter in exporters:
            exporter.wait(60)
        _fetch(wire, folder / "whole")
    cut(folder, parts, draw(seed, RATE, settings.duration_s, scale=PROMPT_SCALE)[0].offset_s)
    return tuple(parts)


def cut(folder: Path, parts: Sequence[Part], first_offset_s: float) -> None:
    """Leave FOLDER/KIND with each part of the bundle FOLDER/whole; its first request came `first_offset_s` in."""
    whole = folder / "whole"
    rows = [json.loads(line) for line in (whole / "requests.jsonl").read_text().splitlines()]
    counters = [json.loads(line) for line in (whole / "counters.jsonl").read_text().splitlines()]
    zero_s = min(row["arrival_s"] for row in rows) - first_offset_s
    for part in parts:
        bundle = folder / part.kind
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
def _exporters(wire: Wire, pids: tuple[int, int]) -> Iterator[tuple[Process, ...]]:
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
        yield tuple(running)
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


def _fetch(wire: Wire, bundle: Path) -> None:
    """Put both recordings together: decode's requests, both nodes' counters, each on its own clock."""
    bundle.mkdir(parents=True)
    metas = []
    for end in wire.ends:
        files = _files(end)
        metas.append(json.loads(files.pop("meta.json")))
        for name, content in files.items():
            with (bundle / name).open("ab") as file:
                file.write(content)
    meta = metas[1] | {name: metas[0][name] | metas[1][name] for name in ("nodes", "metrics")}
    (bundle / "meta.json").write_text(json.dumps(meta))


def _files(end: End) -> dict[str, bytes]:
    folder = f"{_FOLDER}/bundle"
    names = end.machine.run(["ls", folder], check=True).stdout.split()
    return {name: end.machine.get(f"{folder}/{name}") for name in names}
