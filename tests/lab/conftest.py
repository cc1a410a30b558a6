"""The lab's machines as pytest fixtures, booted once for a whole test run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import image, probing, topology


@pytest.fixture(scope="session")
def lab_image() -> image.Image:
    """Return what the machines boot; skip with the reason where there can be no lab."""
    if reason := image.missing_prerequisite():
        pytest.skip(reason)
    return image.prepare()


@pytest.fixture(scope="session")
def lab_logs() -> Path:
    """Return this run's folder for the machines' consoles and kernel logs."""
    return image.logs_folder()


@pytest.fixture(scope="session")
def lab_pair(lab_image: image.Image, lab_logs: Path) -> Iterator[topology.Wire]:
    """Two machines joined by a cable."""
    with topology.pair(lab_image, lab_logs) as wire:
        yield wire


@pytest.fixture(scope="session")
def lab_bench(lab_pair: topology.Wire) -> Iterator[probing.Bench]:
    """Return an agent and a prober in the two machines, for probes that need no process of their own."""
    bench = probing.Bench(lab_pair)
    yield bench
    bench.close()


@pytest.fixture(scope="session")
def lab_node(lab_image: image.Image, lab_logs: Path) -> Iterator[topology.Wire]:
    """One machine with two rxe devices joined by a veth pair."""
    with topology.node(lab_image, lab_logs) as wire:
        yield wire
