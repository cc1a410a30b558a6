from pathlib import Path

import pytest

from kvdiag.model.missing import Missing
from kvdiag.sources._pods import pod_of
from kvdiag.sources.base import Context
from kvdiag.sources.tree import Tree
from kvdiag_exporters.collectors.base import Engine, Setup
from kvdiag_exporters.collectors.engine_pod import LOOK_EVERY_S, EnginePodCollector
from tests.exporters.host import StillClock
from tests.trees import write_tree

UID = "8f3c1a52-0b7d-4c1e-9a55-2d6f0e9b7c11"
SYSTEMD = UID.replace("-", "_")
CONTAINER = "ab" * 32


@pytest.mark.parametrize(("cgroup", "uid", "container"), [
    (f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SYSTEMD}.slice/cri-containerd-{CONTAINER}.scope",
     UID, CONTAINER),
    (f"12:memory:/kubepods/besteffort/pod{UID}/{CONTAINER}\\n0::/", UID, CONTAINER),
    (f"0::/kubepods/guaranteed/pod{UID}", UID, None),
    (f"0::/../../kubepods-pod{SYSTEMD}.slice/crio-{CONTAINER}.scope/container", UID, CONTAINER),
    (f"0::/kubepods/burstable/pod{'0a1b2c3d' * 4}/{CONTAINER}", "0a1b2c3d" * 4, CONTAINER),
    ("0::/system.slice/vllm.service", None, None),
    ("0::/", None, None),
    ("0::/user.slice/podman-1234.scope", None, None),
])  # fmt: skip
def test_pods_by_control_group(tmp_path: Path, cgroup: str, uid: str | None, container: str | None) -> None:
    pod = pod_of(Tree(write_tree(f"proc/7/cgroup = {cgroup}", tmp_path)), 7)
    if uid is None:
        assert pod == Missing("/proc/7/cgroup names no pod")
        return
    assert not isinstance(pod, Missing)
    assert pod.uid == uid
    assert pod.container_id == (container or Missing("/proc/7/cgroup names no container"))
    assert pod.name == Missing("/var/log/pods does not exist")


def test_an_engines_pod_has_its_names_where_the_kubelets_folder_can_be_read(tmp_path: Path) -> None:
    root = write_tree(f"proc/7/cgroup = 0::/kubepods/pod{UID}/{CONTAINER}\nproc/8/cgroup = 0::/", tmp_path / "root")
    engines = (Engine(name="a", node="n", role="decode", pid=7), Engine(name="b", node="n", pid=8))
    clock = StillClock()
    collector = EnginePodCollector(
        Setup(node="n", engines=engines, context=Context(root=root, live=False, clock=clock))
    )
    assert [one.labels for one in collector.collect()] == [("n", "a", "decode", "", "", UID)]
    assert collector.missing == ("engine a: /var/log/pods does not exist",)
    write_tree(f"var/log/pods/serving_decode-0_{UID}/\nvar/log/pods/other_x_1234/", root)
    clock.now_s += LOOK_EVERY_S
    assert [one.labels for one in collector.collect()] == [("n", "a", "decode", "serving", "decode-0", UID)]
    assert not collector.missing
