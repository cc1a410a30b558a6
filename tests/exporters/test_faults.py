"""Sources that vanish, turn binary, become unreadable or start again: no collector fails, and all is well after one."""

import math
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kvdiag_exporters.catalog import Buckets, Sample
from kvdiag_exporters.collectors.base import Setup, create_all
from kvdiag_exporters.derived.base import create_all as derive_all
from kvdiag_exporters.scraper import Collection, Scraper
from tests.exporters.host import StillClock, write_host

ROUNDS = 6
FAULTS_A_ROUND = 12


def vanish(path: Path, choose: random.Random) -> None:
    path.unlink()


def garble(path: Path, choose: random.Random) -> None:
    path.write_bytes(choose.randbytes(choose.randrange(200)))


def empty(path: Path, choose: random.Random) -> None:
    path.write_bytes(b"")


def cut(path: Path, choose: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: choose.randrange(1 + path.stat().st_size)])


def become_folder(path: Path, choose: random.Random) -> None:
    path.unlink()
    path.mkdir()


def begin_again(path: Path, choose: random.Random) -> None:
    path.write_text("0\n")


FAULTS: tuple[Callable[[Path, random.Random], None], ...] = (vanish, garble, empty, cut, become_folder, begin_again)


def series(collection: Collection) -> set[tuple[str, tuple[str, ...]]]:
    """Return the series but those that come and go by design: findings, and the state that an agent's age gives it."""
    changing = ("kvdiag_finding", "kvdiag_nixl_agents")
    return {(one.metric.name, one.labels) for one in collection.samples if one.metric.name not in changing}


def values(samples: tuple[Sample, ...]) -> list[float]:
    return [one.value.sum if isinstance(one.value, Buckets) else one.value for one in samples]


@pytest.mark.parametrize("seed", range(2))
def test_faults_of_the_host_hide_only_what_they_hit(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    setup: Setup = write_host(tmp_path / "host")
    clock = setup.clock
    assert isinstance(clock, StillClock)
    places = ("root", "nixl")
    for name in places:
        shutil.copytree(tmp_path / "host" / name, tmp_path / "whole" / name, symlinks=True)
    scraper = Scraper(create_all(setup), clock, derivations=derive_all(setup))
    first = scraper.collect(fresh=True)
    clock.now_s += 60
    healthy = series(scraper.collect(fresh=True))
    for _ in range(ROUNDS):
        files = [path for name in places for path in (tmp_path / "host" / name).rglob("*") if path.is_file()]
        struck = [path for path in choose.sample(files, min(FAULTS_A_ROUND, len(files))) if not path.is_symlink()]
        for path in struck:
            if path.is_file():
                choose.choice(FAULTS)(path, choose)
        clock.now_s += 60
        hit = scraper.collect(fresh=True)
        assert {name: one.error for name, one in hit.outcomes.items() if one.error} == {}
        assert not any(math.isnan(value) for value in values(hit.samples))
        assert len(hit.samples) <= 2 * len(first.samples)
        for path in struck:
            if path.is_dir():
                path.rmdir()
            shutil.copyfile(tmp_path / "whole" / path.relative_to(tmp_path / "host"), path)
        clock.now_s += 60
        again = scraper.collect(fresh=True)
        assert {name: one.error for name, one in again.outcomes.items() if one.error} == {}
        clock.now_s += 60
        assert healthy <= series(scraper.collect(fresh=True))
