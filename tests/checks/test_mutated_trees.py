"""One unreadable, cut, binary or malicious file stops neither the sources nor the checks, and makes nothing pass.

KVDIAG_MUTATED_TREES=20000 tries that many trees instead of the few of an ordinary run, other ones each time.
"""

import atexit
import functools
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvdiag.checks.base import Check, Hosts, Outcome, Passed, discover
from kvdiag.model.missing import Missing
from kvdiag.model.snapshot import Snapshot
from kvdiag.sources import base as sources
from kvdiag.sources.base import Context, collect
from tests.trees import HOSTS, write_peer_tree, write_tree

TREES = int(os.environ.get("KVDIAG_MUTATED_TREES", "0"))
FIXTURES = HOSTS.parent / "checks"
FAILING = sorted(str(path.relative_to(FIXTURES)) for path in FIXTURES.glob("*/fail*.tree"))
NAMES = sorted(path.name for path in HOSTS.iterdir() if path.is_dir())
CHECKS = {check.code: check for check in discover()}
PARTS = tuple(sources.discover())
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
    b"{}",
    b'[{"a": 1e999}]',
    b"::\n",
    b"\n" * 300,
)
UNREADABLE = ("folder", "pipe", "binary")
"""What a file can be that shows nothing of what it held."""
BY_NAMES = frozenset({"CNT001", "TRN002"})
"""Checks that look at which folders there are, and so may pass a host of which no file can be read."""
SECONDARY = re.compile(
    r"/proc/\d+/(cmdline|cgroup|maps)$|/logs/|/commands/(ibv_devinfo|kvdiag-pair|nvidia-smi-q)\.txt$"
)
"""What only refines a verdict: without it a check judges by what remains, as on a host that never had it.

A process without a command line is not known to serve; libibverbs, measurements, logs, mapped libraries and control
groups are asked beside a first source.
"""
MALICIOUS = (*UNREADABLE, "loop", "outside", "zero", "sparse", "node")


def budget(trees: int) -> settings:
    return settings(
        max_examples=TREES or trees,
        derandomize=not TREES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@functools.cache
def scratch() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="kvdiag-mutated-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def host_tree(name: str) -> tuple[Path, tuple[Path, ...]]:
    """Return a private copy of a host's tree, and its files."""
    root = scratch() / name
    shutil.copytree(HOSTS / name, root, symlinks=True)
    return root, files_of(root)


@functools.cache
def failing_tree(name: str) -> tuple[Path, Path | None, tuple[Path, ...]]:
    """Return a private copy of a tree on which a check fails, that of its peer, and the files of both."""
    text = (FIXTURES / name).read_text()
    folder = scratch() / name.replace("/", "-")
    root = write_tree(text, folder / "host")
    peer = write_peer_tree(text, folder / "peer")
    return root, peer, files_of(root) + (files_of(peer) if peer else ())


def files_of(root: Path) -> tuple[Path, ...]:
    return tuple(sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink()))


def put(path: Path, kind: str, content: bytes = b"") -> None:
    """Replace a file by something else of a kind."""
    path.unlink()
    match kind:
        case "gone":
            return
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "binary":
            path.write_bytes(b"\xff\xfe\0\x80" * 64)
        case "loop":
            path.symlink_to(path.name)
        case "outside":
            path.symlink_to("/proc/self/environ")
        case "zero":
            path.symlink_to("/dev/zero")
        case "sparse":
            with path.open("wb") as file:
                file.truncate(1 << 30)
        case "node":
            os.mknod(path, 0o666 | 0o020000, os.makedev(1, 5))  # as /dev/zero
        case _:
            path.write_bytes(content)


@contextmanager
def mutated(changes: dict[Path, tuple[str, bytes]]) -> Iterator[None]:
    held = {path: path.read_bytes() for path in changes}
    try:
        for path, (kind, content) in changes.items():
            put(path, kind, content)
        yield
    finally:
        for path, content in held.items():
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink(missing_ok=True)
            path.write_bytes(content)


def read(root: Path) -> Snapshot:
    """Read every source, and let through what it raises."""
    context = Context(root=root, live=False)
    return Snapshot(host=context.host(), time_s=0.0, parts={source.part: source.read(context) for source in PARTS})


def judge(check: Check, root: Path, peer: Path | None) -> Outcome:
    peers = (collect(Context(root=peer, live=False)),) if peer else ()
    return check.run(Hosts(local=collect(Context(root=root, live=False)), peers=peers))


@st.composite
def change(draw: st.DrawFn, files: tuple[Path, ...]) -> tuple[Path, tuple[str, bytes]]:
    path = draw(st.sampled_from(files))
    kind = draw(st.sampled_from(("gone", "cut", "junk", "flip", *UNREADABLE, "loop", "outside")))
    content = path.read_bytes()
    if kind == "cut":
        content = content[: draw(st.integers(0, len(content)))]
    elif kind == "junk":
        content = draw(st.sampled_from(JUNK) | st.binary(max_size=40))
    elif kind == "flip" and content:
        position = draw(st.integers(0, len(content) - 1))
        content = content[:position] + bytes([draw(st.integers(0, 255))]) + content[position + 1 :]
    return path, (kind, content)


@given(st.data())
@budget(120)
def test_no_mutation_of_a_host_makes_anything_raise(data: st.DataObject) -> None:
    root, files = host_tree(data.draw(st.sampled_from(NAMES)))
    changes = dict(data.draw(st.lists(change(files), min_size=1, max_size=4)))
    with mutated(changes):
        snapshot = read(root)
    hosts = Hosts(local=snapshot, peers=(snapshot,))
    for check in CHECKS.values():
        check.run(hosts)


@given(st.data())
@budget(120)
def test_a_finding_never_becomes_a_pass_where_a_file_cannot_be_read(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(FAILING))
    root, peer, files = failing_tree(name)
    files = tuple(file for file in files if not SECONDARY.search(str(file)))
    path, kind = data.draw(st.sampled_from(files)), data.draw(st.sampled_from(UNREADABLE))
    check = CHECKS[name.partition("/")[0].upper()]
    with mutated({path: (kind, b"")}):
        outcome = judge(check, root, peer)
    assert not isinstance(outcome, Passed), f"{name}: {path.relative_to(scratch())} as {kind}: {outcome}"


@pytest.mark.parametrize("kind", MALICIOUS)
def test_a_tree_of_malicious_files_is_read_at_once(kind: str) -> None:
    root, files = host_tree("dgx-8x-infiniband")
    started_s = time.process_time()
    try:
        with mutated(dict.fromkeys(files, (kind, b""))):
            snapshot = collect(Context(root=root, live=False))
    except PermissionError:
        pytest.skip("needs hardware: the right to make device nodes")
    assert time.process_time() - started_s < 20
    outcomes = {code: check.run(Hosts(local=snapshot)) for code, check in CHECKS.items()}
    assert {code for code, outcome in outcomes.items() if isinstance(outcome, Passed)} <= BY_NAMES


@pytest.mark.parametrize("kind", MALICIOUS)
def test_one_malicious_file_leaves_the_other_parts_as_they_were(kind: str) -> None:
    root, _ = host_tree("roce-bond")
    whole = read(root)
    for name in ("proc/5151/limits", "commands/ucx_info-d.txt", "proc/meminfo"):
        try:
            with mutated({root / name: (kind, b"")}):
                now = read(root)
        except PermissionError:
            pytest.skip("needs hardware: the right to make device nodes")
        changed = {part.__name__ for part in whole.parts if now.parts[part] != whole.parts[part]}
        assert len(changed) <= 2, (name, changed)
        assert not any(isinstance(now.parts[part], Missing) for part in whole.parts if part.__name__ not in changed
                       and not isinstance(whole.parts[part], Missing))  # fmt: skip
