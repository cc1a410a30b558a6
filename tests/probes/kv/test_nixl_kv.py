"""Real NIXL between two processes: fragmentation costs what it costs, and the fitted price predicts."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate

from kvdiag.report.json import published_schema

pytestmark = [
    pytest.mark.component,
    pytest.mark.skipif(importlib.util.find_spec("nixl_cu12") is None, reason="nixl-cu12 is not installed"),
]
KVDIAG = Path(sys.executable).with_name("kvdiag")


def probe(*arguments: str) -> dict[str, Any]:
    command = [str(KVDIAG), "probe", "kv", "--transport", "nixl", "-f", "json", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("UCX_")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, env=environment)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    validate(document, published_schema("kvdiag.probe-kv-1"))
    return document


@pytest.mark.parametrize("head_size", [128, 512])
def test_coalesced_beats_block_wise_threefold_and_an_unseen_size_is_predicted(head_size: int) -> None:
    """Blocks of 4 and of 16 KiB: block tokens 16 × head size × 2 bytes."""
    ratio, errors = 0.0, [9.9]
    for _ in range(3):  # the machine may be busy with other work: then once more
        document = probe(
            *("--layers", "4", "--kv-heads", "1", "--head-size", str(head_size), "--op", "write"),
            *("--tokens", "256,512,1024", "--rounds", "5", "--repeats", "20"),
        )
        rows = {(row["mode"], row["tokens"]): row for row in document["rows"]}
        block, coalesced = rows["block", 1024], rows["coalesced", 1024]
        assert (block["descriptors"], coalesced["descriptors"]) == (512, 8)
        assert block["bytes"] == coalesced["bytes"] == 512 * 16 * head_size * 2
        ratio = max(ratio, block["fastest_s"] / coalesced["fastest_s"])
        (cost,) = document["costs"]
        found = [abs(one["relative_error"]) for one in cost["predictions"]]
        errors = min(errors, found, key=max)
        if ratio >= 3 and max(errors) <= 0.25:
            break
    assert ratio >= 3
    assert max(errors) <= 0.25
