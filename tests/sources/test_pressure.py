from dataclasses import replace
from pathlib import Path

import pytest

from kvdiag.model.missing import Missing
from kvdiag.model.pressure import Pressure
from kvdiag.sources.pressure import read_pressure
from kvdiag.sources.tree import Tree
from kvdiag_exporters.collectors.base import Engine, Setup
from kvdiag_exporters.collectors.host_pressure import HostPressureCollector
from tests.exporters.host import write_host

CPU = """some avg10=65.07 avg60=79.82 avg300=54.46 total=13782469109
full avg10=0.00 avg60=0.00 avg300=0.00 total=0
"""
OLD_CPU = "some avg10=0.16 avg60=0.22 avg300=0.18 total=2500000\n"


def tree(folder: Path, **files: str) -> Tree:
    (folder / "proc/pressure").mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / "proc/pressure" / name).write_text(text)
    return Tree(folder)


def test_totals_of_tasks_that_wait(tmp_path: Path) -> None:
    found = read_pressure(tree(tmp_path, cpu=CPU, memory=OLD_CPU, io="some avg10=N/A"))
    assert isinstance(found, Pressure)
    assert found.stalled_s["cpu"] == pytest.approx(13782.469109)
    assert found.stalled_s["memory"] == 2.5
    assert found.stalled_s["io"] == Missing("/proc/pressure/io holds 'some avg10=N/A', no total")


def test_a_kernel_without_pressure_is_missing_and_not_zero(tmp_path: Path) -> None:
    found = read_pressure(Tree(tmp_path))
    assert isinstance(found, Missing)
    assert "psi=0" in found.missing
    assert read_pressure(tree(tmp_path)) == Pressure(stalled_s={})


def test_the_exporter_records_them_by_resource(tmp_path: Path) -> None:
    setup: Setup = replace(write_host(tmp_path), engines=())
    collector = HostPressureCollector(setup)
    assert list(collector.collect()) == []
    assert "CONFIG_PSI" in collector.missing[0]
    tree(tmp_path / "root", cpu=CPU, io="nothing")
    (sample,) = collector.collect()
    assert sample.labels == (setup.node, "cpu")
    assert sample.value == pytest.approx(13782.469109)
    assert collector.missing == ("/proc/pressure/io holds 'nothing', no total",)
    assert [one.name for one in sample.metric.recorded] == [
        "host.cpu_stalled_us", "host.memory_stalled_us", "host.io_stalled_us",
    ]  # fmt: skip


def test_the_hosts_pressure_is_that_of_every_node_whose_engine_runs_on_it(tmp_path: Path) -> None:
    setup = replace(
        write_host(tmp_path),
        engines=(
            Engine(name="prefill", node="prefill-0", pid=11),
            Engine(name="decode", node="decode-0", pid=12),
            Engine(name="elsewhere", node="decode-1", metrics=("http://decode-1:8000/metrics",)),
        ),
    )
    tree(tmp_path / "root", cpu=CPU)
    found = {sample.labels: sample.value for sample in HostPressureCollector(setup).collect()}
    assert found.keys() == {(setup.node, "cpu"), ("prefill-0", "cpu"), ("decode-0", "cpu")}
    assert list(found.values()) == pytest.approx([13782.469109] * 3)
