from pathlib import Path

from kvdiag.model.missing import Missing
from kvdiag.model.rdma_namespace import RdmaNamespace
from kvdiag.sources.base import Context
from kvdiag.sources.rdma_namespace import SOURCE
from tests.trees import write_tree


def read(text: str, folder: Path) -> RdmaNamespace | Missing:
    return SOURCE.read(Context(root=write_tree(text, folder), live=False))


def test_mode_plugin_and_cni(tmp_path: Path) -> None:
    part = read(
        """
        commands/rdma-system.txt = netns exclusive copy-on-fork on
        proc/77/cmdline = /bin/k8s-rdma-shared-dp\\0--use-cdi
        proc/78/cmdline = /bin/sh\\0-c\\0k8s-rdma-shared-dp
        opt/cni/bin/rdma = binary
        """,
        tmp_path,
    )
    assert part == RdmaNamespace(mode="exclusive", origin="rdma system", shared_plugin_pid=77, rdma_cni=True)


def test_an_old_tool_tells_no_mode(tmp_path: Path) -> None:
    part = read('commands/rdma-system.txt = Object "system" is unknown, try "rdma help".', tmp_path)
    assert part == Missing("/commands/rdma-system.txt names no network namespace mode")
