"""The lab's machines as pytest fixtures, booted once for a whole test run."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import image, topology

_KEPT_LOGS = 10


@pytest.fixture(scope="session")
def lab_image() -> image.Image:
    """Return what the machines boot; skip with the reason where there can be no lab, but fail when CI is true."""
    reason = image.missing_prerequisite()
    if reason and os.environ.get("CI") == "true":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    return image.prepare()


@pytest.fixture(scope="session")
def lab_logs() -> Path:
    """Return this run's folder for the machines' logs; the last ten runs' are kept."""
    folder = image.cache_folder() / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    for old in sorted(folder.iterdir())[: -_KEPT_LOGS + 1]:
        shutil.rmtree(old, ignore_errors=True)
    return folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


@pytest.fixture(scope="session")
def lab_pair(lab_image: image.Image, lab_logs: Path) -> Iterator[topology.Wire]:
    """Two machines joined by a cable."""
    with topology.pair(lab_image, lab_logs) as wire:
        yield wire


@pytest.fixture(scope="session")
def lab_node(lab_image: image.Image, lab_logs: Path) -> Iterator[topology.Wire]:
    """One machine with two rxe devices joined by a veth pair."""
    with topology.node(lab_image, lab_logs) as wire:
        yield wire
