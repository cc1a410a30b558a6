"""A node with 8 NICs and 8 GPUs is judged in under 2 s of processor time, the interpreter's start included."""

import os
import subprocess
import sys

from kvdiag.model.missing import Missing
from kvdiag.model.pci import VENDOR_NVIDIA, PciFunctions
from kvdiag.model.rdma import RdmaDevices
from kvdiag.sources.base import Context, collect
from tests.trees import HOSTS

TREE = HOSTS / "dgx-8x-infiniband"


def test_the_tree_is_of_that_size() -> None:
    snapshot = collect(Context(root=TREE, live=False))
    devices, functions = snapshot.part(RdmaDevices), snapshot.part(PciFunctions)
    assert not isinstance(devices, Missing) and not isinstance(functions, Missing)
    assert len(devices.devices) >= 8
    assert sum(item.vendor == VENDOR_NVIDIA and item.base_class == 3 for item in functions.functions) >= 8


def test_it_is_judged_in_under_two_seconds_of_processor_time() -> None:
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-m", "kvdiag", "preflight", "--root", str(TREE), "--peer-root", str(TREE), "-f", "json"],
        capture_output=True,
        check=False,
    )
    after = os.times()
    assert done.returncode in (0, 1), done.stderr
    spent_s = after.children_user + after.children_system - before.children_user - before.children_system
    assert 0 < spent_s < 2
