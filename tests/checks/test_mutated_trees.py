"""One unreadable, cut, binary or strange file stops neither the sources nor the checks."""

import random
import shutil
from pathlib import Path

import pytest

from kvdiag.checks.base import Hosts, discover
from kvdiag.model.snapshot import Snapshot
from kvdiag.sources import base as sources
from kvdiag.sources.base import Context
from tests.trees import HOSTS

MUTATIONS = 60
JUNK = (
    b"",
    b"\0\0",
    b"\xff\xfe\0x",
    b"-1",
    b"9" * 5000,
    b"N/A (no PMA)",
    b"0x",
    b"4:",
    b"a: b\n" * 50,
    b"1e999",
    b"[x]",
)


def mutate(path: Path, chance: random.Random) -> None:
    text = path.read_bytes()
    match chance.randrange(4):
        case 0:
            path.unlink()
        case 1:
            path.unlink()
            path.mkdir()
        case 2:
            path.write_bytes(text[: chance.randrange(len(text) + 1)])
        case _:
            path.write_bytes(chance.choice(JUNK))


@pytest.mark.parametrize("name", ["dual-port-second-unused", "missing-address", "soft-roce"])
def test_no_mutation_of_a_tree_makes_anything_raise(name: str, tmp_path: Path) -> None:
    chance = random.Random(name)
    root = tmp_path / "host"
    for number in range(MUTATIONS):
        shutil.copytree(HOSTS / name, root, symlinks=True)
        files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
        for path in chance.sample(files, chance.choice((1, 1, 4))):
            mutate(path, chance)
        parts = {source.part: source.read(Context(root=root, live=False)) for source in sources.discover()}
        snapshot = Snapshot(host=str(number), time_s=0.0, parts=parts)
        for check in discover():
            check.run(Hosts(local=snapshot, peers=(snapshot,)))
        shutil.rmtree(root)
