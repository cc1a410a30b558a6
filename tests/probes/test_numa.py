import os
from pathlib import Path

from kvdiag_probes import numa


def tree(folder: Path, node: str, cpulist: str) -> Path:
    (folder / "class/infiniband/mlx5_0/device").mkdir(parents=True)
    (folder / "class/infiniband/mlx5_0/device/numa_node").write_text(node)
    (folder / "devices/system/node/node1").mkdir(parents=True)
    (folder / "devices/system/node/node1/cpulist").write_text(cpulist)
    return folder


def test_this_thread_runs_beside_the_device_for_a_while(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    mine = min(before)
    with numa.beside("mlx5_0", tree(tmp_path, "1\n", f"{mine},1000-1003\n")) as note:
        assert note == "pinned to NUMA node 1"
        assert os.sched_getaffinity(0) == {mine}
    assert os.sched_getaffinity(0) == before


def test_what_cannot_be_pinned_says_why_and_changes_nothing(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    with numa.beside("mlx5_0", tree(tmp_path / "a", "-1\n", "0\n")) as note:
        assert note == "not pinned: the NUMA node of mlx5_0 is not known"
    with numa.beside("mlx5_0", tree(tmp_path / "b", "1\n", "4000-4003\n")) as note:
        assert note == "not pinned: no processor of node 1 may be used"
    assert os.sched_getaffinity(0) == before


def test_a_list_of_ranges_is_read(tmp_path: Path) -> None:
    assert numa.processors(1, tree(tmp_path, "1", "0-2,8,10-11\n")) == {0, 1, 2, 8, 10, 11}
    assert numa.processors(7, tmp_path) == set()
