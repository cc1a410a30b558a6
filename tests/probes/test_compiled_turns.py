"""The compiled loops against the real pyverbs over a device in user space that copies, fails or stays silent."""

import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvdiag_probes import compiled_turns
from tests.probes import fake_device

PYVERBS = Path("/usr/lib/python3/dist-packages/pyverbs/device.cpython-311-x86_64-linux-gnu.so")


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None or not Path("/usr/include/infiniband/verbs.h").exists():
        pytest.skip("needs gcc and libibverbs-dev")
    if importlib.util.find_spec("pyverbs") is None and not PYVERBS.exists():
        pytest.skip("needs python3-pyverbs for this Python")
    return fake_device.build(tmp_path_factory.mktemp("device"))


def tell(device: Path, *scenario: str, **faults: int) -> dict[str, Any]:
    environment = os.environ | {"LD_PRELOAD": str(device), "FAKE_MOVES": "1"}
    environment |= {f"FAKE_{name.upper()}": str(value) for name, value in faults.items()}
    command = [sys.executable, "-m", "tests.probes.fake_device", *scenario]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.component
@pytest.mark.parametrize("operation", ["write", "read", "write-imm"])
@pytest.mark.parametrize("plain", [0, 1])
def test_messages_go_one_by_one_each_to_its_place(device: Path, operation: str, plain: int) -> None:
    told = tell(device, "alone", operation, **({"plain": 1} if plain else {}))
    assert (told["loop"], told["moved"], len(told["latencies"])) == ("compiled", True, 50)
    assert min(told["latencies"]) > 0
    assert all(before < after for before, after in itertools.pairwise(told["posted"]))
    assert sum(told["latencies"]) <= told["posted"][-1] - told["posted"][0] + told["latencies"][-1]
    assert told["elapsed"] >= sum(told["latencies"])


@pytest.mark.component
def test_two_ends_answer_each_other(device: Path) -> None:
    told = tell(device, "exchange")
    assert told["moved"]
    assert (len(told["latencies"]), len(told["answer"]["latencies"])) == (50, 49)
    assert 2 * sum(told["latencies"]) == pytest.approx(told["elapsed"])


@pytest.mark.component
@pytest.mark.parametrize("plain", [0, 1])
def test_a_failed_completion_ends_the_pass_with_its_cause(device: Path, plain: int) -> None:
    faults = {"fails": 7} | ({"plain": 1} if plain else {})
    told = tell(device, "alone", "write", **faults)
    assert told["error"].startswith("CompletionError: ")
    assert "REM_ACCESS_ERR (10, vendor 0x89)" in told["error"]


@pytest.mark.component
def test_a_failure_in_a_ping_pong_is_told_by_who_sent_it(device: Path) -> None:
    told = tell(device, "exchange", fails=7)
    assert "REM_ACCESS_ERR (10, vendor 0x89)" in told["error"]


@pytest.mark.component
@pytest.mark.parametrize("scenario", [("alone", "write"), ("exchange",)])
def test_silence_ends_after_the_timeout(device: Path, scenario: tuple[str, ...]) -> None:
    told = tell(device, *scenario, silent=7)
    assert "no completion within 0." in told["error"]


@pytest.mark.component
@pytest.mark.parametrize("scenario", [("alone", "write"), ("exchange",)])
def test_a_refused_post_is_told(device: Path, scenario: tuple[str, ...]) -> None:
    told = tell(device, *scenario, refuses=7)
    assert "the provider refused a message (Cannot allocate memory)" in told["error"]


@pytest.mark.component
def test_a_queue_pair_is_found_with_its_own_completion_queue_only(device: Path) -> None:
    assert tell(device, "stranger") == {"found": [True, False]}


def test_a_library_of_another_version_is_not_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled_turns.LIBRARY.exists():
        pytest.skip("this installation has no compiled loop")
    changed = tmp_path / "latency_loops.c"
    changed.write_text("/* another */")
    monkeypatch.setattr(compiled_turns, "SOURCE", changed)
    compiled_turns._library.cache_clear()
    try:
        assert compiled_turns._library() == (None, "latency_loops.so is of another version: install kvdiag again")
    finally:
        compiled_turns._library.cache_clear()


def test_an_installation_without_a_library_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_turns, "LIBRARY", tmp_path / "latency_loops.so")
    compiled_turns._library.cache_clear()
    try:
        library, why = compiled_turns._library()
    finally:
        compiled_turns._library.cache_clear()
    assert library is None
    assert why.startswith("no compiled loop in this installation")
