import importlib.util
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from kvdiag.errors import UndeterminedError
from kvdiag_probes._pyverbs import DistributionFinder, make_importable


@pytest.fixture(autouse=True)
def _no_pyverbs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    # Another test of the same process may have found the real one.
    others = [finder for finder in sys.meta_path if not isinstance(finder, DistributionFinder)]
    monkeypatch.setattr(sys, "meta_path", others)


def package(folder: Path, suffix: str) -> Path:
    (folder / "pyverbs").mkdir(parents=True)
    (folder / "pyverbs" / "__init__.py").touch()
    (folder / "pyverbs" / f"device{suffix}").touch()
    (folder / "secrets.py").write_text("raise AssertionError('never import this')")
    return folder


def test_only_pyverbs_is_found_in_the_distributions_folder(tmp_path: Path) -> None:
    folder = package(tmp_path, EXTENSION_SUFFIXES[0])
    make_importable([tmp_path / "nowhere", folder])
    (finder,) = [finder for finder in sys.meta_path if isinstance(finder, DistributionFinder)]
    spec = finder.find_spec("pyverbs")
    assert spec is not None
    assert spec.origin == str(folder / "pyverbs" / "__init__.py")
    assert finder.find_spec("secrets") is None


def test_another_pythons_build_is_named(tmp_path: Path) -> None:
    folder = package(tmp_path, ".cpython-27-x86_64-linux-gnu.so")
    with pytest.raises(UndeterminedError, match="is built for cpython-27-x86_64-linux-gnu, this is python3"):
        make_importable([folder])


def test_absence_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(UndeterminedError, match="apt install python3-pyverbs"):
        make_importable([tmp_path])
