"""Optional packages that are not there, and those that are and do not load."""

import sys
from pathlib import Path

import pytest

from kvdiag.cli._output import require
from kvdiag.errors import UndeterminedError


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_package_that_is_not_there_is_to_be_installed(packages: Path) -> None:
    with pytest.raises(UndeterminedError, match=r"needs the Python package nothere, which is not installed: pip inst"):
        require("nothere", "probes", "kvdiag probe kv")
    (packages / "kvdiag_needs_another.py").write_text("import nothere_either\n")
    with pytest.raises(UndeterminedError, match="package nothere_either, which is not installed"):
        require("kvdiag_needs_another", "probes", "kvdiag probe kv")


@pytest.mark.parametrize(
    "code",
    [
        "try:\n    raise OSError('lib.so: failed to map segment')\nexcept OSError as error:\n"
        "    raise ImportError('several\\nlines of advice') from error\n",
        "raise ImportError('lib.so: failed to map segment\\nand more')\n",
    ],
)
def test_a_package_that_does_not_load_is_not_told_to_be_installed(packages: Path, code: str) -> None:
    (packages / "kvdiag_broken.py").write_text(code)
    with pytest.raises(UndeterminedError) as caught:
        require("kvdiag_broken", "probes", "kvdiag probe kv")
    said = str(caught.value)
    assert "kvdiag_broken, which is installed and cannot be loaded: lib.so: failed to map segment; is there" in said
    assert "\n" not in said and "pip install" not in said
    assert "kvdiag_broken" not in sys.modules
