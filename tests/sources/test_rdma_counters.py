from pathlib import Path

from kvdiag.model.rdma import RdmaCounters
from kvdiag.sources.base import Context
from kvdiag.sources.rdma_counters import SOURCE
from tests.trees import write_tree

PORT = "sys/class/infiniband/mlx5_0/ports/1"


def read(root: Path) -> RdmaCounters:
    counters = SOURCE.read(Context(root=root, live=False))
    assert isinstance(counters, RdmaCounters)
    return counters


def test_one_unreadable_counter_hides_no_other(tmp_path: Path) -> None:
    write_tree(
        f"""
        {PORT}/counters/port_xmit_data = 18446744073709551615
        {PORT}/counters/port_rcv_data = N/A (no PMA)
        {PORT}/counters/VL15_dropped/
        {PORT}/hw_counters/Nak Sequence Error = 3
        """,
        tmp_path,
    )
    (port,) = read(tmp_path).ports
    assert (port.device, port.port) == ("mlx5_0", 1)
    assert port.counters == {"port_xmit_data": 2**64 - 1}
    assert port.hw_counters == {"Nak Sequence Error": 3}
    assert port.unreadable == {
        "counters/VL15_dropped": "/sys/class/infiniband/mlx5_0/ports/1/counters/VL15_dropped: not a regular file",
        "counters/port_rcv_data": (
            "/sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data holds 'N/A (no PMA)', not a number"
        ),
    }


def test_an_absent_folder_is_a_reason_and_not_an_empty_success(tmp_path: Path) -> None:
    (port,) = read(write_tree(f"{PORT}/hw_counters/sent_pkts = 0", tmp_path)).ports
    assert port.hw_counters == {"sent_pkts": 0}
    assert port.unreadable == {"counters": "/sys/class/infiniband/mlx5_0/ports/1/counters does not exist"}


def test_every_port_of_every_device_in_order(tmp_path: Path) -> None:
    for place in ("mlx5_1/ports/1", "mlx5_0/ports/10", "mlx5_0/ports/2"):
        write_tree(f"sys/class/infiniband/{place}/hw_counters/lifespan = 10", tmp_path)
    assert [(port.device, port.port) for port in read(tmp_path).ports] == [("mlx5_0", 2), ("mlx5_0", 10), ("mlx5_1", 1)]
