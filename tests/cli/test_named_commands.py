"""Every `kvdiag ...` that a page or a remedy names is a command, with the flags that it is named with."""

import re
from pathlib import Path

import pytest
import typer
from typer.core import TyperCommand, TyperGroup

from kvdiag.cli._main import build_app

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "kvdiag").rglob("*.md"))
REMEDIES = sorted((ROOT / "tests" / "fixtures" / "checks").rglob("*.txt"))
NAMED = re.compile(r"kvdiag((?: +(?:[a-z][a-z0-9-]*|--?[A-Za-z][A-Za-z-]*|[A-Z0-9./:_-]+…?))+)")


@pytest.fixture(scope="module")
def root() -> TyperGroup:
    command = typer.main.get_command(build_app())
    assert isinstance(command, TyperGroup)
    return command


def named(text: str) -> list[list[str]]:
    """Return the words after each `kvdiag` at the start of a line, of code, or of what is to be done."""
    starts = re.finditer(r"(?:^|`|: |\()(?=kvdiag )", text, re.MULTILINE)
    return [match[1].split() for start in starts if (match := NAMED.match(text, start.end()))]


def unknown(root: TyperGroup, words: list[str]) -> str | None:
    """Return the first word that is no command or no flag of it."""
    command: TyperCommand | TyperGroup = root
    for word in words:
        if word.startswith("-"):
            if not any(word in parameter.opts for parameter in command.params) and word not in ("--help", "-h"):
                return word
        elif isinstance(command, TyperGroup):
            found = command.commands.get(word)
            if not isinstance(found, TyperCommand | TyperGroup):
                return word
            command = found
    return None


def test_what_is_no_command_is_found(root: TyperGroup) -> None:
    assert unknown(root, ["probe", "mesh", "PEERS"]) == "mesh"
    assert unknown(root, ["preflight", "--nothing"]) == "--nothing"
    assert named("do: compare (kvdiag explain NET001) and\nkvdiag probe mesh --x PEERS") == [
        ["explain", "NET001"],
        ["probe", "mesh", "--x", "PEERS"],
    ]


@pytest.mark.parametrize("kind", ["pages", "remedies"])
def test_every_command_that_is_named_exists(root: TyperGroup, kind: str) -> None:
    files = PAGES if kind == "pages" else REMEDIES
    found = [(path.name, words) for path in files for words in named(path.read_text())]
    assert len(found) > 5
    assert [(name, words) for name, words in found if unknown(root, words) is not None] == []
