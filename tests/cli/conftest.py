"""What commands print on standard error does not depend on how busy the machine is."""

import math

import pytest

from kvdiag.cli.probe import _progress


@pytest.fixture(autouse=True)
def _no_lines_of_long_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_progress, "QUIET_S", math.inf)
