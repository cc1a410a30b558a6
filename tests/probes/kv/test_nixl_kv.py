"""Real NIXL between two processes: fragmentation costs what it costs, and the fitted price predicts."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate

from kvdiag.report.json import published_schema
from kvdiag_probes.kv.cost import fit, predict
from tests.probes.agents import serving

pytestmark = [
    pytest.mark.component,
    pytest.mark.skipif(importlib.util.find_spec("nixl_cu12") is None, reason="nixl-cu12 is not installed"),
]
KVDIAG = Path(sys.executable).with_name("kvdiag")


def probe(*arguments: str, extra: Mapping[str, str] | None = None) -> dict[str, Any]:
    command = [str(KVDIAG), "probe", "kv", "--transport", "nixl", "-f", "json", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("UCX_")}
    environment.update(extra or {})
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, env=environment)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    validate(document, published_schema("kvdiag.probe-kv-1"))
    return document


def blocks_and_runs(document: dict[str, Any], head_size: int) -> float:
    """Return how many times as long block by block takes as coalesced, 1024 tokens in 512 blocks."""
    rows = {(row["mode"], row["tokens"]): row for row in document["rows"]}
    block, coalesced = rows["block", 1024], rows["coalesced", 1024]
    assert (block["descriptors"], coalesced["descriptors"]) == (512, 8)
    assert block["bytes"] == coalesced["bytes"] == 512 * 16 * head_size * 2
    return float(block["fastest_s"] / coalesced["fastest_s"])


# Where other work takes the processors away even from the fastest of all transfers, both tests try again.
_TRIES = 3


@pytest.mark.timeout(900)
def test_16_kib_blocks_take_longer_than_the_same_bytes_coalesced() -> None:
    """At 16 KiB UCX's 7 us per descriptor is 2.4 times the copying on the fastest path seen, 20 times on a slow one."""
    shape = ("--layers", "4", "--kv-heads", "1", "--head-size", "512", "--op", "write", "--tokens", "1024")
    ratios = []
    for _ in range(_TRIES):
        ratios.append(blocks_and_runs(probe(*shape, "--rounds", "5", "--repeats", "12"), 512))
        if ratios[-1] >= 1.5:
            break
    assert max(ratios) >= 1.5, ratios


@pytest.mark.timeout(900)
def test_4_kib_blocks_too_and_the_fitted_cost_predicts_a_size_that_it_has_not_seen() -> None:
    """Tries are put together, the fastest of each row: other work makes a transfer slower, never faster.

    On an idle machine a prediction is within 25 %; beside the lab it has been off by a third.
    """
    shape = ("--layers", "4", "--kv-heads", "1", "--head-size", "128", "--op", "write", "--tokens", "256,512,1024")
    fastest: dict[tuple[str, int, int, int], float] = {}
    for _ in range(_TRIES):
        document = probe(*shape, "--rounds", "5", "--repeats", "12")
        (cost,) = document["costs"]
        assert {one["mode"] for one in cost["predictions"]} == {"block", "coalesced", "contiguous"}
        blocks_and_runs(document, 128)
        for row in document["rows"]:
            key = (row["mode"], row["tokens"], row["descriptors"], row["bytes"])
            fastest[key] = min(fastest.get(key, row["fastest_s"]), row["fastest_s"])
        rows = {key: seconds for key, seconds in fastest.items() if key[0] != "layer"}
        model = fit([(count, size, seconds) for (_, tokens, count, size), seconds in rows.items() if tokens != 512])
        errors = [
            predict(model, count, size) / seconds - 1
            for (_, tokens, count, size), seconds in rows.items()
            if tokens == 512
        ]
        ratio = fastest["block", 1024, 512, 2 << 20] / fastest["coalesced", 1024, 8, 2 << 20]
        if ratio >= 3 and max(map(abs, errors)) <= 0.25:
            break
    assert ratio >= 3, fastest
    assert max(map(abs, errors)) <= 0.4, (errors, fastest)


@pytest.mark.timeout(300)
def test_an_agent_holds_the_far_end_and_the_bytes_are_proved() -> None:
    """Two processes, one control channel: everything but the wire is as between two hosts."""
    shape = ("--layers", "2", "--kv-heads", "2", "--head-size", "64", "--tokens", "64", "--prefill-tp", "2")
    with serving() as server:
        environment = {"KVDIAG_TOKEN": "let-me-in"}
        document = probe(str(server.address), *shape, "--rounds", "1", "--repeats", "2", extra=environment)
    assert document["ends"]["peer"] == str(server.address)
    assert {(row["operation"], row["mode"]) for row in document["rows"]} == {
        (operation, mode) for operation in ("write", "read") for mode in ("block", "layer", "coalesced", "contiguous")
    }
    assert document["proof"]["status"] == "proved"
    assert len(document["proof"]["evidence"]) == 2
