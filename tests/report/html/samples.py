"""A document of every kind that a report shows, made by the commands themselves.

`python -m tests.report.html.samples`, in the repository, writes them anew into tests/fixtures/reports.
"""

import functools
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from kvdiag.cli import main
from kvdiag.derive.intervals import metric
from kvdiag.model.demo import DemoDocument
from kvdiag.model.probe import ProbeEnds
from kvdiag.model.probe_connections import ActiveRow, ConnectionsDocument, FanOut
from kvdiag.model.rdma import RdmaDevices
from kvdiag.report.json import encode, head
from kvdiag_probes import register_probe
from tests.probes.agents import serving
from tests.probes.test_connections import Adapter, measure, settings
from tests.probes.test_gid import device
from tests.probes.test_registration import Kernel, no_window
from tests.trees import HOSTS

RECORDED = Path(__file__).parents[2] / "fixtures/reports"
BUNDLE = Path("tests/fixtures/bundles/fabric.tcp_fallback-severe")
KINDS = ("preflight", "bandwidth", "latency", "kv", "register", "connections", "cold", "compare", "diagnose", "demo")
SMALL_KV = ("--layers", "4", "--kv-heads", "2", "--head-size", "64", "--tokens", "32,64,128", "--repeats", "2")
COMMANDS: dict[str, tuple[str, ...]] = {
    "bandwidth": ("--size", "4KiB,64KiB,1MiB", "--iterations", "64", "--rounds", "5", "--min-bandwidth", "1Mb/s"),
    "latency": ("--size", "64,4KiB,64KiB", "--iterations", "200"),
    "kv": (*SMALL_KV, "--rounds", "5"),
    "cold": ("--size", "64KiB", "--rounds", "5", "--steady", "8"),
    "compare": ("--methods", "tcp-write,tcp-read", "--size", "4KiB,64KiB", "--iterations", "16", "--rounds", "5"),
}


def write_documents(folder: Path) -> dict[str, Path]:
    """Write a document of each of KINDS into the folder: probes over loopback, doubles for what needs an adapter."""
    texts = {"preflight": _said("preflight", "--root", str(HOSTS / "missing-address"))}
    with serving() as server, patch.dict("os.environ", {"KVDIAG_TOKEN": "let-me-in"}):
        for name, arguments in COMMANDS.items():
            transport = () if name == "compare" else ("--transport", "tcp")
            texts[name] = _said("probe", name, str(server.address), *transport, *arguments)
    texts["register"] = _register()
    texts["connections"] = encode(connections_document())
    texts["diagnose"] = _said("diagnose", str(BUNDLE))
    paths = {}
    for name, text in texts.items():
        paths[name] = folder / f"{name}.json"
        paths[name].write_text(text)
    paths["demo"] = folder / "demo.json"
    paths["demo"].write_text(encode(demo_document(paths["diagnose"])))
    assert paths.keys() == set(KINDS)
    return paths


def connections_document(**changes: Any) -> ConnectionsDocument:
    """Return a probe of connections against an adapter that has room for 300 queue pairs."""
    local = measure(Adapter(room=300), most_pairs=1000)
    active = [
        ActiveRow(
            queue_pairs=pairs,
            queue_depth=64 // pairs,
            bandwidth=metric(
                f"active {pairs}", "bytes_per_second", "higher", [2e9 / pairs**0.1 + noise * 1e7 for noise in range(5)]
            ),
            of_best=pairs**-0.1,
        )
        for pairs in (1, 4, 16, 64)
    ]
    fan_out = FanOut(
        prefill_pairs=64, decode_pairs=32, most_peers=18, setup_s=0.05, fits=True, advice="64 queue pairs fit in 300"
    )
    fields: dict[str, Any] = {
        "settings": settings(active=(1, 4, 16, 64), prefill=4, decode=8),
        "ends": ProbeEnds(
            peer="10.0.0.2:7471", peer_host="decode-1", local_device="x0", peer_device="x1", path_mtu=4096
        ),
        "setup": local.setup,
        "creation": tuple(local.creation),
        "sharing": local.sharing,
        "exhaustion": local.exhaustion,
        "active": tuple(active),
        "fan_out": fan_out,
        "judgements": (),
        "missing": tuple(local.missing),
    }
    return ConnectionsDocument(**head("kvdiag.probe-connections/1", host="prefill-1"), **(fields | changes))  # type: ignore[arg-type]


def demo_document(diagnosis: Path) -> DemoDocument:
    """Return what a demo would say whose recording led to this diagnosis."""
    found = json.loads(diagnosis.read_text())
    parts = ("verdict", "causes", "stages", "baseline", "incident", "data", "steps")
    whole = {
        **head("kvdiag.demo/1"),
        "verdict": found["verdict"],
        "fault_injected": "link",
        "fault_description": "the link carries a sixth of what it did",
        "fault_offset_s": 30.0,
        "expected_cause": found["verdict"]["cause"],
        "matched": True,
        "transport": "tcp",
        "isolated": False,
        "seed": 7,
        "rate": 8.0,
        "duration_s": 60.0,
        "requests": 480,
        "metrics_address": "127.0.0.1:9464",
        "metrics_sample": [],
        "bundle": "kvdiag-demo/bundle-20261129-120000",
        "notes": ["no NIXL wheel: TCP was used"],
        "diagnosis": {name: found[name] for name in parts},
    }
    return msgspec.convert(whole, DemoDocument)


@contextmanager
def _opened(_: str) -> Iterator[Kernel]:
    yield Kernel()


def _register() -> str:
    found = RdmaDevices(devices=(device("mlx5_1"), device("mlx5_2")))
    double = functools.partial(register_probe.measure, open_domain=_opened, open_window=no_window)
    small = (
        "--size",
        "4KiB,64KiB,1MiB",
        "--pages",
        "4KiB",
        "--rounds",
        "5",
        "--threads",
        "1,2",
        "--limit-bytes",
        "2MiB",
    )
    with patch.multiple(register_probe, read_devices=lambda: found, measure=double):
        return _said("probe", "register", *small, "--kv", "1MiB")


def _said(*arguments: str) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        code = main([*arguments, "--format", "json"])
    assert code in (0, 1, 2), (arguments, code)
    return out.getvalue()


if __name__ == "__main__":
    RECORDED.mkdir(exist_ok=True)
    write_documents(RECORDED)
