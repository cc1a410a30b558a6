"""The host and the engines that the exporter watches under faults: files with growing counters, and their truth."""

import re
import shutil
import struct
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.exporters.chaos.engine import FakeEngine, recorded
from tests.exporters.chaos.truth import Factor, Troubles
from tests.exporters.host import NIXL, write_host

ENGINES = Path(__file__).parents[2] / "fixtures/engines"
_NUMBER = re.compile(r"(?<=\s)\d+(?=\s|$)")
_SCALED_FILES = (
    "sys/devices/*/*/infiniband/*/ports/*/counters/*",
    "sys/devices/*/*/infiniband/*/ports/*/hw_counters/*",
    "proc/net/dev",
    "proc/net/snmp",
    "proc/net/netstat",
    "proc/121/net/*",
)
STEP_S = 0.25
"""How often counters grow: slowly, so that no rate exceeds its link."""

_CONFIG = """
listen = "127.0.0.1:0"
address_file = "address"
interval_s = {interval_s}
node = "host-a"
root = "host/root"
[[engines]]
name = "vllm-prefill"
node = "prefill-0"
role = "prefill"
pid = 121
nixl_telemetry = "host/nixl"
metrics = ["http://127.0.0.1:{prefill}/metrics"]
metrics_interval_s = {interval_s}
[[engines]]
name = "vllm-decode"
node = "decode-0"
role = "decode"
records = "records.jsonl"
metrics = ["http://127.0.0.1:{decode}/metrics"]
metrics_interval_s = {interval_s}
[recorder]
path = "bundle"
rotate_s = 3600
keep = 100
[records]
otlp_http = "127.0.0.1:0"
otlp_grpc = "127.0.0.1:0"
settle_s = 0.2
wait_s = 2
window_s = 3600
attribution_interval_s = 1
"""


@dataclass
class World:
    """Everything below `folder`; `files` are those of the host by group, `templates` the growing ones."""

    folder: Path
    interval_s: float
    troubles: Troubles = field(default_factory=Troubles)
    host: Factor = field(default_factory=Factor)
    engines: dict[str, FakeEngine] = field(default_factory=dict)
    files: dict[str, list[Path]] = field(default_factory=dict)
    struck: set[Path] = field(default_factory=set)
    writing: threading.RLock = field(default_factory=threading.RLock)
    templates: dict[Path, str] = field(default_factory=dict)
    clock_off_s: float = 0.0

    @property
    def config(self) -> Path:
        return self.folder / "exporter.toml"

    @property
    def offset_file(self) -> Path:
        return self.folder / "clock"

    def build(self) -> None:
        """Write the files, begin the engines, and write the exporter's configuration."""
        host = self.folder / "host"
        host.mkdir()
        write_host(host)
        for store in (NIXL / "stores/one-process").iterdir():  # two agents of one rank
            shutil.copy(store, host / "nixl")
        root = host / "root"
        number = 1000
        for pattern in _SCALED_FILES:
            for path in sorted(root.glob(pattern)):
                text = path.read_text()
                if "counters" in path.parent.name and path.name != "lifespan":
                    number += 7  # each its own, so that none is taken for another
                    text = f"{number}\n"
                self.templates[path] = text
                path.write_text(text)
        self.files = {
            "host": [one for one in self.templates if "121" not in one.parts],
            "process": sorted(
                one for one in (root / "proc/121").rglob("*") if one.is_file() and not {"net", "fd"} & {*one.parts}
            ),
            "nixl": sorted((host / "nixl").iterdir()),
        }
        (self.folder / "records.jsonl").touch()
        self.engines = {
            "vllm-prefill": FakeEngine(recorded(ENGINES, "vllm-prefill-push")),
            "vllm-decode": FakeEngine(recorded(ENGINES, "vllm-decode-tbf200-after")),
        }
        self.config.write_text(
            _CONFIG.format(
                interval_s=self.interval_s,
                prefill=self.engines["vllm-prefill"].port,
                decode=self.engines["vllm-decode"].port,
            )
        )
        self.step_clock(0.0)
        shutil.copytree(host, self.folder / "whole", symlinks=True)

    def step_clock(self, off_s: float) -> None:
        """Let the exporter's wall clock be off by so many seconds."""
        self.clock_off_s = off_s
        if not self.offset_file.exists():
            self.offset_file.write_bytes(bytes(8))
        with self.offset_file.open("r+b") as file:
            file.write(struct.pack("<d", off_s))

    def advance(self, factor: int | None = None) -> None:
        """Let every counter of the host grow by its own base, or stand at a factor."""
        with self.writing:
            self.host.begin(self.host.now + 1 if factor is None else factor)
            for path in self.templates:
                if path not in self.struck:
                    self._write(path)
            self.host.end()

    def strike(self, path: Path) -> None:
        """Leave the file to a fault."""
        with self.writing:
            self.struck.add(path)

    def heal(self, path: Path) -> None:
        """Put the file back as it is to be now."""
        with self.writing:
            self.struck.discard(path)
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            if path in self.templates:
                self._write(path)
            else:
                whole = self.folder / "whole" / path.relative_to(self.folder / "host")
                beside = self.folder / "beside"
                shutil.copyfile(whole, beside)
                beside.replace(path)

    def come_back(self, away: Path, folder: Path, inside: Iterable[Path]) -> None:
        """Put a folder back with all files as they are to be now: no reader sees old ones."""
        for path in inside:
            self.struck.discard(path)
            if path in self.templates:
                self._write(path, away / path.relative_to(folder))
        away.rename(folder)

    def _write(self, path: Path, place: Path | None = None) -> None:
        """Write a growing file at once, as the kernel gives it: no reader sees half of it."""
        factor = self.host.now
        text = self.templates[path]
        scaled = (
            f"{int(text) * factor}\n"
            if text.strip().isdecimal()
            else _NUMBER.sub(lambda m: str(int(m[0]) * factor), text)
        )
        beside = self.folder / "beside"
        beside.write_text(scaled)
        beside.replace(place or path)

    def close(self) -> None:
        for engine in self.engines.values():
            engine.close()
