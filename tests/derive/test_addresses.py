"""The address that a remedy names for the side channel."""

from pathlib import Path

import pytest

from kvdiag.derive.addresses import address_of
from kvdiag.sources.base import Context, collect
from tests.trees import write_tree


@pytest.mark.parametrize("default", ["", "bond1"])
def test_the_interface_of_the_default_route_gives_the_address(default: str, tmp_path: Path) -> None:
    root = write_tree("base roce-bond", tmp_path)
    if default:
        route = root / "proc/net/route"
        fields = (default, "00000000", "416433C6", "0003", "0", "0", "0", "00000000", "0", "0", "0")
        route.write_text(route.read_text() + "\t".join(fields) + "\n")
    snapshot = collect(Context(root=root, live=False))
    assert address_of(snapshot) == ("198.51.100.85" if default else "198.51.100.21")
