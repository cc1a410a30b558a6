"""The rule of tests/conftest.py itself: on CI a skip is a failure unless hardware is missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")


@pytest.mark.parametrize(
    ("reason", "ci", "passes"),
    [("not today", "true", False), ("needs hardware: a GPU", "true", True), ("not today", "", True)],
)
def test_a_skip_on_ci_fails_unless_hardware_is_missing(reason: str, ci: str, passes: bool, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "test_it.py").write_text(f"import pytest\n\ndef test_it():\n    pytest.skip({reason!r})\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "CI": ci}, cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode == 0) is passes, done.stdout
