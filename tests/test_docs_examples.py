"""The examples of docs/adding-a-check.md and docs/adding-a-source.md work, and touch nothing but their own files."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
pytestmark = pytest.mark.component
_BLOCK = re.compile(r"^`([^`\n]+)`:\n````\w*\n(.*?)^````$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of what is needed to run a check's and a source's tests."""
    root = tmp_path / "copy"
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("kvdiag", "tests/checks", "tests/fixtures"):
        shutil.copytree(REPOSITORY / folder, root / folder, symlinks=True, ignore=ignored)
    for file in ("pyproject.toml", "tests/__init__.py", "tests/trees.py", "tests/test_conformance.py"):
        shutil.copy(REPOSITORY / file, root / file)
    (root / "tests/sources").mkdir()
    (root / "tests/sources/__init__.py").touch()
    return root


def write_blocks(page: str, root: Path) -> list[str]:
    """Write the files that a page shows, none of which may be there already."""
    blocks = _BLOCK.findall((REPOSITORY / "docs" / page).read_text())
    for name, text in blocks:
        path = root / name
        assert not path.exists(), f"{name} would change a shared file"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return [name for name, _ in blocks]


def run(root: Path, *arguments: str, code: int = 0, golden: bool = False) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=root,
        env={
            **os.environ,
            "PYTHONPATH": str(root),
            "PYTHONDONTWRITEBYTECODE": "1",
            "KVDIAG_UPDATE_GOLDEN": "1" if golden else "",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def run_tests(root: Path, *arguments: str, golden: bool = False) -> int:
    """Run pytest there and return how many tests passed."""
    said = run(root, "pytest", "-q", "-p", "no:cacheprovider", *arguments, golden=golden)
    found = re.search(r"(\d+) passed", said)
    assert found is not None, said
    return int(found[1])


def test_the_copy_is_what_runs(copy: Path) -> None:
    (copy / "show.py").write_text("import kvdiag\nprint(kvdiag.__file__)\n")
    assert run(copy, "show").strip() == str(copy / "kvdiag/__init__.py")


def test_a_check_is_added_by_its_own_files(copy: Path) -> None:
    names = write_blocks("adding-a-check.md", copy)
    assert {Path(name).suffix for name in names} == {".py", ".md", ".tree"}
    run_tests(copy, "tests/checks/test_fixtures.py", "-k", "vnd900", golden=True)
    golden = (copy / "tests/fixtures/checks/vnd900/fail.txt").read_text()
    assert golden.startswith("warning mlx5_bond_1: mlx5_bond_1 run older firmware")
    assert run_tests(copy, "tests/checks/test_fixtures.py", "-k", "vnd900") > 0
    assert run_tests(copy, "tests/test_conformance.py", "-k", "VND900") > 0
    run_tests(copy, "tests/checks/test_healthy_hosts.py")
    page = run(copy, "kvdiag", "explain", "VND900")
    assert page.startswith("# VND900: firmware differs")
    host = copy / "tests/fixtures/hosts/roce-bond"
    firmware = host / "sys/class/infiniband/mlx5_bond_1/fw_ver"
    firmware.write_text("22.35.1012\n")
    judged = ("kvdiag", "preflight", "--root", str(host), "--select", "VND900", "--format", "json")
    document = json.loads(run(copy, *judged, code=1))
    assert [finding["code"] for finding in document["findings"]] == ["VND900"]


def test_a_source_is_added_by_its_own_files(copy: Path) -> None:
    write_blocks("adding-a-source.md", copy)
    assert run_tests(copy, "tests/sources/test_tcp_settings.py") > 0
    assert run_tests(copy, "tests/test_conformance.py", "-k", "tcp_settings") > 0
    script = (
        "from kvdiag.model.tcp_settings import TcpSettings\n"
        "from kvdiag.sources.base import Context, collect\n"
        "print(collect(Context()).part(TcpSettings).receive_buffer_bytes)\n"
    )
    (copy / "show.py").write_text(script)
    assert int(run(copy, "show")) > 0
