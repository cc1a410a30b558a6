"""The wheel: exactly three top-level names, typed, and working in a fresh environment from another folder."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOP_LEVEL = {"kvdiag", "kvdiag_probes", "kvdiag_exporters"}


def _run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=280, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.mark.component
def test_wheel_contents(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == TOP_LEVEL
    for package in TOP_LEVEL:
        assert f"{package}/py.typed" in names
    pages = {path.name for path in (ROOT / "kvdiag/checks").glob("*.md")}
    assert {f"kvdiag/checks/{page}" for page in pages} <= set(names)
    assert any(name.startswith("kvdiag/schemas/") and name.endswith(".json") for name in names)
    # Code for one platform is in a wheel for that platform, beside the source that it names.
    compiled = "kvdiag_probes/latency_loops.so" in names
    assert compiled == ("none-any" not in wheel.name)
    assert compiled or shutil.which("gcc") is None or not Path("/usr/include/infiniband/verbs.h").exists()
    assert "kvdiag_probes/latency_loops.c" in names
    _run(sys.executable, "-m", "check_wheel_contents", wheel, cwd=ROOT)


@pytest.mark.component
def test_wheel_in_a_fresh_environment(wheel: Path, tmp_path: Path) -> None:
    _run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv/bin/python"
    _run(python, "-m", "pip", "install", "--quiet", wheel, cwd=tmp_path)
    _run(python, "-c", "import kvdiag, kvdiag_probes, kvdiag_exporters", cwd=tmp_path)
    kvdiag = tmp_path / "venv/bin/kvdiag"
    assert _run(kvdiag, "--version", cwd=tmp_path).startswith("kvdiag ")
    assert "preflight" in _run(kvdiag, "--help", cwd=tmp_path)
    # Without the extras a command says which one it needs, and nothing else.
    for command in (["diagnose", "x"], ["exporter"], ["agent"], ["demo"], ["top"]):
        done = subprocess.run([kvdiag, *command], capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert done.returncode in (3, 64), done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
