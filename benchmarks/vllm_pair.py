"""A real vLLM pair on one machine without a GPU: prefill and decode in network namespaces of their own (needs root).

The KV caches cross a veth pair (device kvp0 at the prefill side, kvd0 at the decode side) by NIXL over TCP; requests,
metrics and spans come and go by another one each, so that a slow KV link slows nothing else.
"""

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import IO

from kvdiag_probes.demo import network, tether

HOST, PORT = "198.18.1.1", 8000
OTLP_PORT, SIDE_PORT = 4318, 5600
ADDRESSES = {"prefill": "198.18.1.2", "decode": "198.18.1.3"}
KV = {
    "prefill": (network.PREFILL_DEVICE, network.PREFILL_ADDRESS, "kv_producer"),
    "decode": (network.DECODE_DEVICE, network.DECODE_ADDRESS, "kv_consumer"),
}
NODES = {"prefill": "prefill-0", "decode": "decode-0"}
READY_WITHIN_S = 400.0
KV_CACHE_BYTES = 512 << 20
_BURST, _QUEUE = "256kb", "64mb"
"""As the demo's link has them: no segment is larger, and nothing in flight is lost."""
_WANTED = "import importlib.metadata as m; import vllm, nixl; m.version('kvdiag')"


class Pair:
    """The running engines; `pids`, `step_records` and `urls` are by role."""

    def __init__(self, folder: Path, holders: Mapping[str, int]) -> None:
        self.folder, self._holders = folder, holders
        self.pids: dict[str, int] = {}
        self.urls = {role: f"http://{address}:{PORT}" for role, address in ADDRESSES.items()}
        self.step_records = {role: folder / f"steps-{role}.jsonl" for role in ADDRESSES}

    def engines(self) -> dict[str, dict[str, object]]:
        """Return what the exporter's configuration says of each engine, by node."""
        return {
            NODES[role]: {
                "name": f"vllm-{role}",
                "role": role,
                "pid": self.pids[role],
                "metrics": [f"{self.urls[role]}/metrics"],
                "step_records": str(self.step_records[role]),
                "nixl_telemetry": str(self.folder / f"nixl-{role}"),
            }
            for role in ADDRESSES
        }

    def throttle(self, bits_per_second: float | None) -> None:
        """Limit what leaves the prefill side's end of the KV link; None: no limit."""
        device = KV["prefill"][0]
        if bits_per_second is None:
            _run(*self.inside("prefill"), "tc", "qdisc", "del", "dev", device, "root")
            return
        shape = ("rate", f"{bits_per_second:.0f}bit", "burst", _BURST, "limit", _QUEUE)
        _run(*self.inside("prefill"), "tc", "qdisc", "replace", "dev", device, "root", "tbf", *shape)

    def inside(self, role: str) -> list[str]:
        """Return the start of a command line that runs in the role's network namespace, with its own /sys."""
        proc = f"/proc/{self._holders[role]}/ns"
        return ["nsenter", f"--net={proc}/net", f"--mount={proc}/mnt"]


@contextmanager
def running(venv: Path, folder: Path) -> Iterator[Pair]:
    """Make model and network, start both engines, wait until they answer; everything is gone afterwards."""
    python = str(venv / "bin/python")
    found = subprocess.run([python, "-c", _WANTED], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        reason = (found.stderr.strip().splitlines() or ["it does not start"])[-1]
        raise SystemExit(f"--venv {venv}: vllm, nixl and kvdiag must be installed in it: {reason}")
    model = folder / "model"
    if not (model / "model.safetensors").exists():
        _run(python, str(Path(__file__).with_name("vllm_model.py")), str(model))
    with ExitStack() as stack:
        holders = {}
        for role in ADDRESSES:
            command = tether.wrap(["sleep", "infinity"], on_parent_death=SIGKILL, netns=True)
            holders[role] = stack.enter_context(_process(command)).pid
        _link(holders)
        pair = Pair(folder, holders)
        processes = {}
        for role in ADDRESSES:
            (folder / f"nixl-{role}").mkdir(exist_ok=True)
            log = stack.enter_context((folder / f"{role}.log").open("wb"))
            command = tether.wrap([*pair.inside(role), *_serve(python, model, role)], on_parent_death=SIGTERM)
            processes[role] = stack.enter_context(_process(command, env=_environment(pair, role), output=log))
            pair.pids[role] = processes[role].pid
        deadline_s = time.monotonic() + READY_WITHIN_S
        for role, process in processes.items():
            while not _answers(f"{pair.urls[role]}/health"):
                if process.poll() is not None or time.monotonic() > deadline_s:
                    raise SystemExit(f"vLLM's {role} engine does not serve; log: {folder / f'{role}.log'}")
                time.sleep(0.5)
        yield pair


def _serve(python: str, model: Path, role: str) -> list[str]:
    transfer = f'{{"kv_connector":"NixlConnector","kv_role":"{KV[role][2]}","kv_buffer_device":"cpu"}}'
    return [
        *(python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--served-model-name", "tiny"),
        *("--host", "0.0.0.0", "--port", str(PORT), "--enforce-eager", "--dtype", "bfloat16"),
        *("--max-model-len", "8192", "--kv-cache-memory-bytes", str(KV_CACHE_BYTES), "--kv-transfer-config", transfer),
        *("--enable-request-id-headers", "--otlp-traces-endpoint", f"http://{HOST}:{OTLP_PORT}/v1/traces"),
    ]


def _environment(pair: Pair, role: str) -> dict[str, str]:
    device, address, _ = KV[role]
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        # for a small machine without a GPU
        "PYTHONPATH": str(Path(__file__).with_name("vllm_shim")),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # UCX would otherwise go through shared memory, which network namespaces do not part
        "UCX_TLS": "tcp",
        "UCX_NET_DEVICES": device,
        "VLLM_NIXL_SIDE_CHANNEL_HOST": address,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(SIDE_PORT),
        # what kvdiag reads: docs/vllm.md
        "OTEL_SERVICE_NAME": f"vllm-{role}",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_BSP_SCHEDULE_DELAY": "500",
        "KVDIAG_VLLM_RECORDS": str(pair.step_records[role]),
        "KVDIAG_VLLM_LINK": "1",
        "NIXL_TELEMETRY_ENABLE": "y",
        "NIXL_TELEMETRY_EXPORTER": "prometheus_mp",
        "NIXL_TELEMETRY_MULTIPROC_DIR": str(pair.folder / f"nixl-{role}"),
    }


def _link(holders: Mapping[str, int]) -> None:
    """Make the link of the KV caches, and one to each engine; they go with their namespaces."""
    deadline_s = time.monotonic() + 10
    while Path("/proc/self/ns/net").readlink() in [Path(f"/proc/{pid}/ns/net").readlink() for pid in holders.values()]:
        if time.monotonic() > deadline_s:
            raise SystemExit("no network namespaces: the benchmark needs root")
        time.sleep(0.05)
    network.connect(holders["prefill"], holders["decode"])
    for role, address in ADDRESSES.items():
        near, inside = f"kvdiag-{role[:3]}", ["nsenter", f"--net=/proc/{holders[role]}/ns/net"]
        _run("ip", "link", "add", near, "type", "veth", "peer", "name", "host0", "netns", str(holders[role]))
        _run("ip", "address", "add", HOST, "peer", address, "dev", near)
        _run("ip", "link", "set", near, "up")
        _run(*inside, "ip", "address", "add", address, "peer", HOST, "dev", "host0")
        _run(*inside, "ip", "link", "set", "host0", "up")


@contextmanager
def _process(
    command: list[str], env: Mapping[str, str] | None = None, output: IO[bytes] | int = subprocess.DEVNULL
) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
