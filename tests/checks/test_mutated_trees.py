"""One unreadable, cut, huge, binary or malicious file stops neither the sources nor the checks, makes nothing pass and
raises no alarm.

KVDIAG_MUTATED_TREES=20000 tries that many trees instead of the few of an ordinary run, and other ones each time: half
of them for the first property, a quarter each for no wrong pass and no false alarm.
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
from typing import TypeVar
from unittest.mock import patch
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvdiag.checks import base
from kvdiag.checks.base import Failed, Hosts, Outcome, Passed, discover, judge
from kvdiag.cli.preflight import _judge
from kvdiag.derive.redact import redact
from kvdiag.model.exit_code import ExitCode
from kvdiag.model.finding import Severity
from kvdiag.model.missing import Missing
from kvdiag.model.snapshot import Snapshot
from kvdiag.report import preflight_junit, preflight_prometheus, preflight_text
from kvdiag.report.json import encode
from kvdiag.sources.base import Context, collect
from kvdiag.sources.preflight_config import PreflightConfig
from kvdiag.sources.snapshot_file import to_document
from tests.rereading import Rereader, read
from tests.trees import HOSTS, write_peer_tree, write_tree

T = TypeVar("T")
TREES = int(os.environ.get("KVDIAG_MUTATED_TREES", "0"))
FIXTURES = HOSTS.parent / "checks"
SICK = ("container-without-provider", "missing-address")
FAILING = sorted(str(path.relative_to(FIXTURES)) for path in FIXTURES.glob("*/fail*.tree"))
HEALTHY = sorted(path.name for path in HOSTS.iterdir() if path.is_dir() and path.name not in SICK)
NAMES = sorted(path.name for path in HOSTS.iterdir() if path.is_dir())
CHECKS = {check.code: check for check in discover()}
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
NUMBERS = (b"0", b"1", b"-1", b"255", b"4294967295", b"18446744073709551616", b"9" * 400, b"1e999", b"0x10")
UNREADABLE = ("folder", "pipe", "binary", "empty", "huge", "loop", "dangling", "outside")
"""What a file can be that shows nothing of what it held."""
BY_NAMES = frozenset({"CNT001", "TRN002"})
"""Checks that look at which folders there are, and so may pass a host of which no file can be read."""
COUNTERS = re.compile(r"/(hw_)?counters/")
ALARMS = {"CNT003": COUNTERS, "CNT004": COUNTERS, "CNT008": COUNTERS}
"""Checks that find unreadable files, and which."""
MALICIOUS = (*UNREADABLE, "zero", "node")


def budget(trees: int, share: int) -> settings:
    return settings(
        max_examples=TREES // share or trees,
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
def host_tree(name: str) -> Rereader:
    """Return a private copy of a host's tree."""
    root = scratch() / name
    shutil.copytree(HOSTS / name, root, symlinks=True)
    return Rereader(root)


@functools.cache
def failing_tree(name: str) -> tuple[Rereader, Rereader | None]:
    """Return a private copy of a tree on which a check fails, and that of its peer."""
    text = (FIXTURES / name).read_text()
    folder = scratch() / name.replace("/", "-")
    peer = write_peer_tree(text, folder / "peer")
    return Rereader(write_tree(text, folder / "host")), Rereader(peer) if peer else None


@functools.cache
def files_of(root: Path) -> tuple[Path, ...]:
    return tuple(sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink()))


@functools.cache
def links_of(root: Path) -> tuple[Path, ...]:
    return tuple(sorted(path for path in root.rglob("*") if path.is_symlink()))


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
        case "empty":
            path.touch()
        case "loop":
            path.symlink_to(path.name)
        case "dangling":
            path.symlink_to("gone/gone")
        case "outside":
            path.symlink_to("/proc/self/environ")
        case "zero":
            path.symlink_to("/dev/zero")
        case "huge":
            with path.open("wb") as file:
                file.truncate(100 << 20)
        case "node":
            os.mknod(path, 0o666 | 0o020000, os.makedev(1, 5))  # as /dev/zero
        case _:
            path.write_bytes(content)


@contextmanager
def mutated(changes: dict[Path, tuple[str, bytes]]) -> Iterator[None]:
    held: dict[Path, bytes | Path] = {
        path: path.readlink() if path.is_symlink() else path.read_bytes() for path in changes
    }
    try:
        for path, (kind, content) in changes.items():
            put(path, kind, content)
        yield
    finally:
        for path, before in held.items():
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink(missing_ok=True)
            if isinstance(before, bytes):
                path.write_bytes(before)
            else:
                path.symlink_to(before)


@functools.cache
def failing_checks(name: str) -> tuple[str, ...]:
    """Return the codes of all checks that find something in a tree, not only of the one it was made for."""
    local, peer = failing_tree(name)
    hosts = Hosts(local=local.whole, peers=(peer.whole,) if peer else ())
    return tuple(code for code, check in CHECKS.items() if isinstance(judge(check, hosts), Failed))


@functools.cache
def parts_of_checks(name: str) -> dict[str, set[type[object]]]:
    """Return the parts that each check looks at on a host."""
    found: dict[str, set[type[object]]] = {}
    part = Snapshot.part
    for code, check in CHECKS.items():
        asked = found.setdefault(code, set())

        def noted(snapshot: Snapshot, part_type: type[T], asked: set[type[object]] = asked) -> T | Missing:
            asked.add(part_type)
            return part(snapshot, part_type)

        with patch.object(Snapshot, "part", noted):
            judge(check, Hosts(local=host_tree(name).whole))
    return found


def judged_anew(name: str, snapshot: Snapshot) -> dict[str, Outcome]:
    """Return what the checks answer of which a part has changed: the others answer as before, being functions."""
    whole = host_tree(name).whole
    changed = {part for part, value in snapshot.parts.items() if value is not whole.parts[part]}
    return {
        code: judge(CHECKS[code], Hosts(local=snapshot))
        for code, parts in parts_of_checks(name).items()
        if not changed.isdisjoint(parts)
    }


def forms(hosts: Hosts) -> None:
    """Make everything of a verdict that users see, in every form."""
    with patch.object(base, "_run", judge):  # what a check raises is not caught here
        document = _judge(hosts.local, list(hosts.peers), tuple(CHECKS.values()), PreflightConfig(), "warning")
    assert encode(document)
    assert preflight_text.render(document, verbose=True).plain
    ElementTree.fromstring(preflight_junit.render(document))
    assert preflight_prometheus.render(document).endswith("\n")
    redacted = to_document(redact(hosts.local, b"k" * 16), redacted=True)
    assert encode(redacted)


@st.composite
def unreadable(draw: st.DrawFn, files: tuple[Path, ...]) -> tuple[Path, tuple[str, bytes]]:
    return draw(st.sampled_from(files)), (draw(st.sampled_from(UNREADABLE)), b"")


@st.composite
def change(draw: st.DrawFn, files: tuple[Path, ...]) -> tuple[Path, tuple[str, bytes]]:
    path = draw(st.sampled_from(files))
    kind = draw(st.sampled_from(("gone", "cut", "junk", "flip", "number", *UNREADABLE)))
    content = path.read_bytes()
    if kind == "cut":
        content = content[: draw(st.integers(0, len(content)))]
    elif kind == "junk":
        content = draw(st.sampled_from(JUNK) | st.binary(max_size=40))
    elif kind == "flip" and content:
        position = draw(st.integers(0, len(content) - 1))
        content = content[:position] + bytes([draw(st.integers(0, 255))]) + content[position + 1 :]
    elif kind == "number" and (numbers := list(re.finditer(rb"\d+", content))):
        chosen = draw(st.sampled_from(numbers))
        number = draw(st.sampled_from(NUMBERS))
        content = content[: chosen.start()] + number + content[chosen.end() :]
    return path, (kind, content)


@given(st.data())
@budget(60, 2)
def test_no_mutation_of_a_host_makes_anything_raise(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(NAMES))
    tree = host_tree(name)
    changes = dict(data.draw(st.lists(change(files_of(tree.root)), min_size=1, max_size=4)))
    started_s = time.process_time()
    with mutated(changes):
        snapshot = tree.again(changes)
    if data.draw(st.integers(0, 4)):
        judged_anew(name, snapshot)
    else:
        forms(Hosts(local=snapshot, peers=(snapshot,)))
    assert time.process_time() - started_s < 20


@given(st.data())
@budget(15, 20)
def test_no_broken_link_makes_anything_raise(data: st.DataObject) -> None:
    root = host_tree(data.draw(st.sampled_from([name for name in NAMES if links_of(host_tree(name).root)]))).root
    links = data.draw(st.lists(st.sampled_from(links_of(root)), min_size=1, max_size=4, unique=True))
    kinds = st.sampled_from(("gone", "loop", "dangling", "outside"))
    with mutated({link: (data.draw(kinds), b"") for link in links}):
        snapshot = read(root)
    forms(Hosts(local=snapshot, peers=(snapshot,)))


@given(st.data())
@budget(40, 4)
def test_a_finding_never_becomes_a_pass_where_a_file_cannot_be_read(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(FAILING))
    local, peer = failing_tree(name)
    files = files_of(local.root) + (files_of(peer.root) if peer else ())
    path, (kind, content) = data.draw(unreadable(files))
    with mutated({path: (kind, content)}):
        hosts = Hosts(local=local.again([path]), peers=(peer.again([path]),) if peer else ())
    outcomes = {code: judge(CHECKS[code], hosts) for code in failing_checks(name)}
    passed = {code: outcome for code, outcome in outcomes.items() if isinstance(outcome, Passed)}
    assert not passed, f"{name}: {path.relative_to(scratch())} as {kind}: {passed}"


@given(st.data())
@budget(60, 4)
def test_an_unreadable_file_of_a_healthy_host_raises_no_alarm(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(HEALTHY))
    tree = host_tree(name)
    path, (kind, content) = data.draw(unreadable(files_of(tree.root)))
    with mutated({path: (kind, content)}):
        snapshot = tree.again([path])
    for code, outcome in judged_anew(name, snapshot).items():
        if isinstance(outcome, Failed) and not (code in ALARMS and ALARMS[code].search(str(path))):
            alarms = [finding for finding in outcome.findings if finding.severity is not Severity.INFO]
            assert not alarms, f"{path.relative_to(scratch())} as {kind}: {alarms}"


@given(st.data())
@budget(6, 100)
def test_what_is_read_again_is_what_reading_everything_gives(data: st.DataObject) -> None:
    tree = host_tree(data.draw(st.sampled_from(NAMES)))
    changes = dict(data.draw(st.lists(change(files_of(tree.root)), min_size=1, max_size=2)))
    with mutated(changes):
        assert tree.again(changes) == read(tree.root)


@pytest.mark.parametrize("kind", MALICIOUS)
def test_a_tree_of_malicious_files_is_read_at_once(kind: str) -> None:
    root = host_tree("dgx-8x-infiniband").root
    started_s = time.process_time()
    try:
        with mutated(dict.fromkeys(files_of(root), (kind, b""))):
            snapshot = collect(Context(root=root, live=False))
    except PermissionError:
        pytest.skip("needs hardware: the right to make device nodes")
    assert time.process_time() - started_s < 20
    outcomes = {code: judge(check, Hosts(local=snapshot)) for code, check in CHECKS.items()}
    assert {code for code, outcome in outcomes.items() if isinstance(outcome, Passed)} <= BY_NAMES
    document = _judge(snapshot, [], tuple(CHECKS.values()), PreflightConfig(), "warning")
    assert document.exit_code in (ExitCode.UNDETERMINED, ExitCode.WARNING)


@pytest.mark.parametrize("kind", MALICIOUS)
def test_one_malicious_file_leaves_the_other_parts_as_they_were(kind: str) -> None:
    root = host_tree("roce-bond").root
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
