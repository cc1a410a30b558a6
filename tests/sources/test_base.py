"""The source protocol: discovery, injected roots, and failures that become Missing."""

import importlib
import os
import pkgutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import kvdiag.sources
from kvdiag.model.missing import Missing
from kvdiag.sources.base import Context, Source, collect, discover


@dataclass(frozen=True)
class Uptime:
    text: str


class UptimeSource:
    part = Uptime

    def read(self, context: Context) -> Uptime:
        return Uptime((context.procfs / "uptime").read_text())


@dataclass(frozen=True)
class StoppedClock:
    now_s: float

    def wall_s(self) -> float:
        return self.now_s

    def monotonic_s(self) -> float:
        return self.now_s


def test_a_source_reads_below_the_injected_root_at_the_injected_time(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/uptime").write_text("12.5 3\n")
    snapshot = collect(Context(root=tmp_path, live=False, clock=StoppedClock(5.0)), [UptimeSource()])
    assert snapshot.part(Uptime) == Uptime("12.5 3\n")
    assert snapshot.time_s == 5.0
    assert snapshot.host == tmp_path.name


def test_what_cannot_be_read_is_missing_with_the_path(tmp_path: Path) -> None:
    snapshot = collect(Context(root=tmp_path, live=False), [UptimeSource()])
    part = snapshot.part(Uptime)
    assert isinstance(part, Missing)
    assert str(tmp_path / "proc/uptime") in part.missing
    assert [name for name, _ in snapshot.missing()] == ["Uptime"]


def test_a_part_nobody_reads_is_missing() -> None:
    part = collect(Context(), []).part(Uptime)
    assert isinstance(part, Missing)
    assert "Uptime" in part.missing


def test_discovered_sources_fill_different_parts() -> None:
    sources = discover()
    assert all(isinstance(source, Source) for source in sources)
    parts = [source.part for source in sources]
    assert len(parts) == len(set(parts))


def test_a_host_name_that_cannot_be_read_is_the_tree_s(tmp_path: Path) -> None:
    root = tmp_path / "node-9"
    assert Context(root=root, live=False).host() == "node-9"
    (root / "proc/sys/kernel").mkdir(parents=True)
    os.mkfifo(root / "proc/sys/kernel/hostname")
    assert Context(root=root, live=False).host() == "node-9"
    (root / "proc/sys/kernel/hostname").unlink()
    (root / "proc/sys/kernel/hostname").write_bytes(b"\xff" + b"x" * 100_000)
    assert Context(root=root, live=False).host() == "node-9"
    (root / "proc/sys/kernel/hostname").write_text("x" * 100_000)
    assert Context(root=root, live=False).host() == "x" * 64


def test_every_module_with_a_source_is_found_and_no_other_is_imported() -> None:
    found = discover()
    for info in pkgutil.iter_modules(kvdiag.sources.__path__):
        if not info.name.startswith("_"):
            module = importlib.import_module(f"kvdiag.sources.{info.name}")
            assert getattr(module, "SOURCE", None) in (None, *found), info.name
    asked = "import sys; from kvdiag.sources.base import discover; discover(); sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked], check=False).returncode == 0
