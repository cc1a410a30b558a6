from pathlib import Path

import pytest

from kvdiag.derive.engines import setup
from kvdiag.derive.fabric import fabric_ports
from kvdiag.derive.gpu_map import nic_map, ranks_of
from kvdiag.derive.visible_gpus import visible_gpus
from kvdiag.model.missing import Missing
from kvdiag.model.pci_topology import PciTopology
from kvdiag.model.serving import ServingProcess
from kvdiag.model.snapshot import Snapshot
from kvdiag.sources.base import Context, collect
from tests.trees import HOSTS, write_tree

HIDDEN = Missing("not read")


def process(*command: str, engine: str = "vllm") -> ServingProcess:
    return ServingProcess(
        pid=1,
        engine=engine,
        command=command,
        uid=HIDDEN,
        groups=HIDDEN,
        memlock=HIDDEN,
        cap_eff=HIDDEN,
        initial_user_namespace=HIDDEN,
        cgroup=HIDDEN,
        network=HIDDEN,
        variables=HIDDEN,
    )


def host(name: str) -> Snapshot:
    return collect(Context(root=HOSTS / name, live=False))


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        (("vllm", "serve", "m"), 1),
        (("vllm", "serve", "m", "--tensor-parallel-size", "8"), 8),
        (("vllm", "serve", "m", "-tp", "4", "--data-parallel-size=2"), 8),
        (("vllm", "serve", "m", "--tensor-parallel-size", "many"), 1),
    ],
)
def test_ranks_of_a_command_line(command: tuple[str, ...], ranks: int) -> None:
    assert ranks_of([setup(process(*command))]) == ranks


def test_workers_are_counted_where_their_titles_show_them() -> None:
    workers = [setup(process(f"VLLM::Worker_TP{number}")) for number in range(4)]
    assert ranks_of([setup(process("vllm", "serve", "m")), *workers]) == 4


def test_every_gpu_gets_the_nearest_port() -> None:
    snapshot = host("dgx-8x-infiniband")
    found = nic_map(snapshot, fabric_ports(snapshot))
    assert [(number, port.device) for number, port in found] == [(number, f"mlx5_{number}") for number in range(8)]


def test_ports_that_are_as_near_are_dealt_out_in_turn() -> None:
    snapshot = host("vm-passthrough")
    found = nic_map(snapshot, fabric_ports(snapshot))
    assert [(number, port.device) for number, port in found] == [(0, "mlx5_0"), (1, "mlx5_1")]


def test_only_ports_beside_a_gpu_are_the_fabric_where_some_are(tmp_path: Path) -> None:
    switched = host("efa-p5en")
    assert len(fabric_ports(switched)) == 16
    text = "base roce-bond\nsys/devices/pci0000:5a/0000:5b:00.0/infiniband/mlx5_bond_1/ports/1/state = 1: DOWN"
    write_tree(text, tmp_path)
    assert [port.name for port in fabric_ports(collect(Context(root=tmp_path, live=False)))] == ["mlx5_bond_0/1"]


def test_gpus_that_a_process_may_use() -> None:
    topology = host("dgx-8x-infiniband").part(PciTopology)
    assert isinstance(topology, PciTopology)
    assert [number for number, _ in visible_gpus({"CUDA_VISIBLE_DEVICES": "3, 1"}, topology)] == [3, 1]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "GPU-0a1b,99"}, topology) == ()
    assert visible_gpus({}, topology) == ()
