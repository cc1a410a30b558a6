"""An agent for the probes' tests; what commands print on standard error does not depend on how busy the machine is."""

import math
from collections.abc import Iterator

import pytest

from kvdiag.cli.probe import _progress
from tests.probes.agents import serving


@pytest.fixture(autouse=True)
def _no_lines_of_long_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_progress, "QUIET_S", math.inf)


@pytest.fixture(scope="module")
def peer() -> Iterator[str]:
    """Yield the address of an agent that wants the `token`."""
    with serving() as server:
        yield str(server.address)


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Present the token that agents of tests want."""
    monkeypatch.setenv("KVDIAG_TOKEN", "let-me-in")
