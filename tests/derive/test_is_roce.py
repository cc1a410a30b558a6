from pathlib import Path

import pytest

from kvdiag.checks.base import Failed, Hosts
from kvdiag.checks.gid002_index_empty_here import CHECK
from kvdiag.sources.base import Context, collect
from tests.trees import HOSTS, write_tree

TREE = (HOSTS.parent / "checks/gid002/fail-differs-by-port.tree").read_text()
PORT = "sys/devices/pci0000:5a/0000:5b:00.0/infiniband/mlx5_bond_1/ports/1"


@pytest.mark.parametrize("change", ["", f"{PORT}/link_layer/", f"- {PORT}/link_layer"])
def test_a_port_that_hides_its_link_layer_is_judged_by_its_gids(change: str, tmp_path: Path) -> None:
    root = write_tree(f"{TREE}\n{change}\n", tmp_path)
    assert isinstance(CHECK.run(Hosts(local=collect(Context(root=root, live=False)))), Failed)
