from pathlib import Path

from kvdiag.model.missing import Missing
from kvdiag.model.rdma_resources import KERNEL_OWNED, QueuePair, RdmaResources
from kvdiag.sources import rdma_netlink
from kvdiag.sources.base import Context
from tests.trees import write_tree

QPS = (
    '[{"ifindex":0,"ifname":"mlx5_0","port":1,"lqpn":0,"type":"SMI","state":"RTS","sq-psn":0,"comm":"ib_core"},'
    '{"ifindex":0,"ifname":"mlx5_0","port":1,"lqpn":277,"rqpn":301,"type":"RC","state":"RTS","rq-psn":12,"sq-psn":4,'
    '"path-mig-state":"MIGRATED","pdn":9,"pid":1523,"comm":"python3"}]'
)


def read(tmp_path: Path, text: str) -> RdmaResources | Missing:
    return rdma_netlink.SOURCE.read(Context(root=write_tree(text, tmp_path), live=False))


def test_a_copied_tree_keeps_the_text_of_the_rdma_tool(tmp_path: Path) -> None:
    part = read(
        tmp_path,
        "commands/rdma-resource-show.txt = 2: mlx5_0: pd 4 cq 9 qp 5 cm_id 0 mr 5 ctx 1 srq 2\\nrubbish\n"
        f"commands/rdma-resource-show-qp.txt = {QPS}",
    )
    assert isinstance(part, RdmaResources)
    (summary,) = part.summaries
    assert (summary.device, summary.counts["qp"], summary.counts["srq"]) == ("mlx5_0", 5, 2)
    kernel, engine = part.queue_pairs
    assert (kernel.type, kernel.pid, kernel.owner) == ("SMI", KERNEL_OWNED, "ib_core")
    assert engine == QueuePair(
        device="mlx5_0", port=1, lqpn=277, rqpn=301, type="RC", state="RTS", pid=1523, owner="python3"
    )


def test_a_cut_list_of_queue_pairs_leaves_the_summaries(tmp_path: Path) -> None:
    part = read(
        tmp_path,
        f"commands/rdma-resource-show.txt = 0: rxe0: pd 1 qp 3\ncommands/rdma-resource-show-qp.txt = {QPS[:99]}",
    )
    assert isinstance(part, RdmaResources)
    assert part.summaries[0].counts == {"pd": 1, "qp": 3}
    assert part.queue_pairs == ()


def test_without_the_text_nothing_is_known(tmp_path: Path) -> None:
    assert read(tmp_path, "etc/") == Missing("/commands/rdma-resource-show.txt does not exist")
