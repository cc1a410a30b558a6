r"""Host trees for tests, written as text.

Each line is one entry, its path as on that host without the leading slash:

    path = text        a file (a newline is added; `\n` and `\0` in it are a newline and a NUL)
    path << NAME       a copy of tests/fixtures/logs/NAME
    path -> target     a symbolic link, which may dangle
    path/              an empty folder (also: a file that cannot be read as one, as the kernel's EINVAL)
    - path             remove what the base has there (a folder with all it holds)
    base NAME          start from the checked-in tree tests/fixtures/hosts/NAME
    peer: ENTRY        the same for the peer's tree
    # comment
"""

import os
import re
import shutil
from pathlib import Path

HOSTS = Path(__file__).parent / "fixtures" / "hosts"
LOGS = Path(__file__).parent / "fixtures" / "logs"


def write_tree(text: str, root: Path) -> Path:
    """Write the tree that the entries of `text` describe below `root` and return `root`; ignores `peer:` lines."""
    root.mkdir(parents=True, exist_ok=True)
    for line in text.splitlines():
        entry = line.strip()
        if entry and not entry.startswith(("#", "peer:")):
            _write_entry(entry, root)
    return root


def write_peer_tree(text: str, root: Path) -> Path | None:
    """Write the tree that the `peer:` entries describe below `root`; None where there are none."""
    entries = [line.strip().removeprefix("peer:") for line in text.splitlines() if line.strip().startswith("peer:")]
    return write_tree("\n".join(entries), root) if entries else None


def _write_entry(entry: str, root: Path) -> None:
    if entry.startswith("base "):
        shutil.copytree(HOSTS / entry.removeprefix("base ").strip(), root, symlinks=True, dirs_exist_ok=True)
    elif entry.startswith("- "):
        _remove(root / entry.removeprefix("- ").strip())
    elif copied := re.fullmatch(r"(\S+) << (\S+)", entry):
        shutil.copyfile(LOGS / copied[2], _make_room(root, copied[1]))
    elif " -> " in entry:
        path, _, target = entry.partition(" -> ")
        place = _make_room(root, path)
        _remove(place, missing_ok=True)
        place.symlink_to(target.strip())
    elif " =" in entry:
        path, _, value = entry.partition(" =")
        place = _make_room(root, path)
        place.write_text(value.strip().replace("\\n", "\n").replace("\\0", "\0") + "\n")
    elif entry.endswith("/"):
        place = _make_room(root, entry.rstrip("/"))
        _remove(place, missing_ok=True)
        place.mkdir()
    else:
        raise ValueError(f"not a tree entry: {entry!r}")


def _make_room(root: Path, path: str) -> Path:
    place = root / path.strip()
    if not Path(os.path.realpath(place.parent)).is_relative_to(os.path.realpath(root)):
        raise ValueError(f"{path} would be written outside the tree")
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _remove(place: Path, *, missing_ok: bool = False) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=missing_ok)
