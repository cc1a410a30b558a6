"""What every check and every source must be, whoever adds it; no test here counts or lists them."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

import kvdiag.checks
from kvdiag.checks.base import Check, Hosts, discover
from kvdiag.model.missing import Missing
from kvdiag.sources import base as sources
from kvdiag.sources.base import Context, Source, collect
from tests.trees import HOSTS, write_peer_tree, write_tree

CHECKS = discover()
SOURCES = sources.discover()
PAGES = Path(kvdiag.checks.__path__[0])
TREES = Path(__file__).parent / "fixtures" / "checks"
HEADINGS = ["## What it finds", "## Why it matters", "## How to confirm", "## What to do"]
PERFORMING_IO = re.compile(r"open$|os\.|socket\.|subprocess\.|shutil\.|ctypes\.|tempfile\.|glob\.|pathlib\.")


def module_of(check: Check) -> ModuleType:
    return sys.modules[check.run.__module__]


def host(name: str) -> Context:
    return Context(root=HOSTS / name, live=False)


def by_code(check: Check) -> str:
    return check.code


def by_module(source: Source) -> str:
    return type(source).__module__.rpartition(".")[2]


class _Watch:
    """Notes the audit events of I/O while it is on; a hook cannot be removed, so there is one for the session."""

    def __init__(self) -> None:
        self.on = False
        self.events: list[str] = []
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.on and PERFORMING_IO.match(event):
            self.events.append(f"{event} {arguments!r}"[:200])


WATCH = _Watch()


@contextmanager
def watched() -> Iterator[list[str]]:
    WATCH.events = []
    WATCH.on = True
    try:
        yield WATCH.events
    finally:
        WATCH.on = False


def test_the_watch_sees_a_file_being_read() -> None:
    with watched() as events:
        Path(__file__).read_text()
    assert events


def test_codes_are_unique() -> None:
    codes = [check.code for check in CHECKS]
    assert sorted(set(codes)) == codes


@pytest.mark.parametrize("check", CHECKS, ids=by_code)
def test_the_code_has_its_form_and_starts_the_file_name(check: Check) -> None:
    assert re.fullmatch(r"[A-Z]{2,4}\d{3}", check.code)
    assert module_of(check).__name__.rpartition(".")[2].startswith(f"{check.code.lower()}_")
    assert (module_of(check).__doc__ or "").startswith(f"{check.code}: ")


@pytest.mark.parametrize("check", CHECKS, ids=by_code)
def test_the_page_stands_beside_the_check_with_its_four_headings(check: Check) -> None:
    page = Path(module_of(check).__file__ or "").with_suffix(".md").read_text()
    assert page.startswith(f"# {check.code}: ")
    assert [line for line in page.splitlines() if line.startswith("## ")] == HEADINGS
    for part in re.split(r"^## .*$", page, flags=re.MULTILINE)[1:]:
        assert part.strip()


def test_every_page_belongs_to_a_check() -> None:
    modules = {Path(module_of(check).__file__ or "").stem for check in CHECKS}
    assert {page.stem for page in PAGES.glob("*.md")} == modules


@pytest.mark.parametrize("check", CHECKS, ids=by_code)
def test_there_is_a_failing_and_a_passing_tree_and_each_has_its_answer(check: Check) -> None:
    trees = {tree.stem for tree in (TREES / check.code.lower()).glob("*.tree")}
    assert {"fail", "pass"} <= trees
    assert trees == {golden.stem for golden in (TREES / check.code.lower()).glob("*.txt")}


@pytest.mark.parametrize("check", CHECKS, ids=by_code)
def test_a_check_does_no_io_and_answers_the_same_again(check: Check, tmp_path: Path) -> None:
    for number, tree in enumerate(sorted((TREES / check.code.lower()).glob("*.tree"))):
        text = tree.read_text()
        peer = write_peer_tree(text, tmp_path / f"{number}-peer")
        hosts = Hosts(
            local=collect(Context(root=write_tree(text, tmp_path / str(number)), live=False)),
            peers=(collect(Context(root=peer, live=False)),) if peer else (),
        )
        with watched() as events:
            first, second = check.run(hosts), check.run(hosts)
        assert events == []
        assert first == second


@pytest.mark.parametrize("check", CHECKS, ids=by_code)
def test_a_check_passes_nothing_where_nothing_was_seen(check: Check, tmp_path: Path) -> None:
    outcome = check.run(Hosts(local=collect(Context(root=tmp_path, live=False))))
    assert type(outcome).__name__ in ("NotApplicable", "NotObservable"), outcome


@pytest.mark.parametrize("source", SOURCES, ids=by_module)
@pytest.mark.parametrize("pid", [None, 1])
def test_a_source_reads_an_empty_tree_without_raising(source: Source, pid: int | None, tmp_path: Path) -> None:
    part = source.read(Context(root=tmp_path, live=False, pid=pid))
    assert isinstance(part, (Missing, source.part))


@pytest.mark.parametrize("source", SOURCES, ids=by_module)
def test_a_missing_part_names_its_reason_in_one_line(source: Source, tmp_path: Path) -> None:
    part = source.read(Context(root=tmp_path, live=False))
    if isinstance(part, Missing):
        assert part.missing
        assert len(part.missing.splitlines()) == 1
        assert str(tmp_path) not in part.missing


@pytest.mark.parametrize("source", SOURCES, ids=by_module)
def test_a_part_survives_the_way_to_a_peer(source: Source) -> None:
    for folder in sorted(path for path in HOSTS.iterdir() if path.is_dir()):
        part = source.read(host(folder.name))
        if not isinstance(part, Missing):
            assert msgspec.json.decode(msgspec.json.encode(part), type=source.part) == part


@pytest.mark.parametrize("source", SOURCES, ids=by_module)
def test_a_part_has_a_json_form(source: Source) -> None:
    # A field `dict | Missing` has none: both are objects.
    msgspec.json.Decoder(source.part)


def test_every_part_has_one_source() -> None:
    parts = [source.part for source in SOURCES]
    assert len(set(parts)) == len(parts)
