"""Keeps a probe on the processors next to its RDMA device."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_SYSFS = Path("/sys")


def node_of(device: str, sysfs: Path = _SYSFS) -> int | None:
    """Return the NUMA node of an RDMA device; None where the platform does not say (-1, or no PCI device)."""
    try:
        node = int((sysfs / "class/infiniband" / device / "device/numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def processors(node: int, sysfs: Path = _SYSFS) -> set[int]:
    """Return a node's processors; empty where sysfs does not list them."""
    try:
        text = (sysfs / f"devices/system/node/node{node}/cpulist").read_text().strip()
    except OSError:
        return set()
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        found |= set(range(int(low), int(high or low) + 1))
    return found


@contextlib.contextmanager
def beside(device: str, sysfs: Path = _SYSFS) -> Iterator[str]:
    """Run this thread on the device's NUMA node for a while; memory that it touches first is then of that node.

    Yields what was done in words: nothing where the node is unknown or none of its processors may be used.
    """
    node = node_of(device, sysfs)
    allowed = os.sched_getaffinity(0)
    wanted = allowed & processors(node, sysfs) if node is not None else set()
    if not wanted:
        unknown = f"not pinned: the NUMA node of {device} is not known"
        yield unknown if node is None else f"not pinned: no processor of node {node} may be used"
        return
    os.sched_setaffinity(0, wanted)
    try:
        yield f"pinned to NUMA node {node}"
    finally:
        os.sched_setaffinity(0, allowed)
