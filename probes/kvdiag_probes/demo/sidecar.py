"""The exporter beside the two workers: its configuration, its process, and a look at what it serves."""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import SIGTERM

from kvdiag.errors import UndeterminedError
from kvdiag_probes.demo import tether

_TELLING = (
    "kvdiag_ttft_seconds_count",
    "kvdiag_ttft_seconds_sum",
    "kvdiag_transfer_stage_seconds_sum",
    "kvdiag_nixl_transmit_bytes_total",
    "kvdiag_nixl_registered_bytes_total",
    "kvdiag_netdev_transmit_bytes_total",
    "kvdiag_tcp_retransmitted_segments_total",
)
_PREFERRED = ('stage="wire"', 'engine="demo-prefill"')

_START_WITHIN_S = 20.0
_STOP_WITHIN_S = 15.0


def configuration(
    engines: Mapping[str, Mapping[str, object]], address_file: Path, bundle: Path, interval_s: float
) -> str:
    """Return the exporter's TOML: one engine per node, a free loopback port, and the recorder's folder."""
    lines = [
        'listen = "127.0.0.1:0"',
        f"address_file = {json.dumps(str(address_file))}",
        f"interval_s = {interval_s}",
    ]
    for node, fields in engines.items():
        lines += ["", "[[engines]]", f"node = {json.dumps(node)}"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in fields.items()]
    lines += ["", "[recorder]", f"path = {json.dumps(str(bundle))}"]
    return "\n".join(lines) + "\n"


def telling(samples: Sequence[str]) -> tuple[str, ...]:
    """Return one sample line of each metric that shows best what the demo does, where it was served."""
    chosen = []
    for name in _TELLING:
        lines = [line for line in samples if line.startswith((f"{name}{{", f"{name} "))]
        preferred = [line for line in lines if any(label in line for label in _PREFERRED)]
        chosen += (preferred or lines)[:1]
    return tuple(chosen)


class Exporter:
    """`kvdiag exporter` as a child process; `address` is HOST:PORT once started."""

    def __init__(self, config: Path, address_file: Path, log: Path) -> None:
        self.address = ""
        self._config, self._address_file, self._log = config, address_file, log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it serves; UndeterminedError when it does not."""
        program = [sys.executable, "-m", "kvdiag", "exporter", "--config", str(self._config)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                tether.wrap(program, on_parent_death=SIGTERM), stdout=log, stderr=log, start_new_session=True
            )
        deadline_s = time.monotonic() + _START_WITHIN_S
        while not self.address:
            self.check()
            if time.monotonic() > deadline_s:
                raise UndeterminedError(f"the exporter wrote no address within {_START_WITHIN_S:g} s; log: {self._log}")
            time.sleep(0.05)
            if self._address_file.exists():
                self.address = self._address_file.read_text().strip()

    def check(self) -> None:
        """Raise UndeterminedError where the process has ended."""
        if self._process is not None and self._process.poll() is not None:
            lines = self._log.read_text(errors="replace").strip().splitlines()
            raise UndeterminedError(
                f"the exporter ended with status {self._process.returncode}: {lines[-1] if lines else 'no output'}"
            )

    def sample(self) -> tuple[str, ...]:
        """Return every sample line that it serves now; empty where it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=5) as answer:
                text: str = answer.read().decode()
        except OSError:
            return ()
        return tuple(line for line in text.splitlines() if line and not line.startswith("#"))

    def stop(self) -> None:
        """Ask it to write out and end, and wait; kill it when it does not."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
