"""The sources of user-space RDMA: providers, verbs devices, device nodes, UCX."""

import os
from pathlib import Path

import pytest

from kvdiag.model.missing import Missing
from kvdiag.model.verbs import DeviceNodes, VerbsDevices, VerbsProviders
from kvdiag.sources import _command, device_nodes, ucx_info, verbs_devices, verbs_providers
from kvdiag.sources.base import Context
from tests.trees import write_tree

DEVINFO = """hca_id:	mlx5_0
	transport:			InfiniBand (0)
	phys_port_cnt:			2
		port:	1
			state:			PORT_ACTIVE (4)
			max_mtu:		4096 (5)
			active_mtu:		1024 (3)
		port:	2
			state:			PORT_DOWN (1)

hca_id:	mlx5_1
Failed to open device
"""


def test_devices_and_mtu_of_ibv_devinfo() -> None:
    part = VerbsDevices(devices=verbs_devices.parse(DEVINFO), origin="file")
    assert [device.name for device in part.devices] == ["mlx5_0", "mlx5_1"]
    assert part.active_mtu("mlx5_0", 1) == 1024
    assert part.active_mtu("mlx5_0", 2) == Missing("port 2 of mlx5_0 shows no active_mtu")
    assert part.active_mtu("mlx5_1", 1) == Missing("file shows no port mlx5_1/1")
    assert verbs_devices.parse("No IB devices found") == ()


def test_limits_are_those_of_the_device_not_of_its_ports() -> None:
    text = "hca_id: ionic_0\n\tvendor_part_id: 4098\n\tmax_qp: 262144\n\tmax_srq: 0\n\tatomic_cap: ATOMIC_NONE (0)\n"
    part = VerbsDevices(devices=verbs_devices.parse(text + "\tport: 1\n\tmax_msg_sz: 0x40000000\n"), origin="file")
    assert part.devices[0].limits == {"vendor_part_id": 4098, "max_qp": 262144, "max_srq": 0}
    assert part.devices[0].texts == {"atomic_cap": "ATOMIC_NONE"}
    assert part.limit("ionic_0", "max_srq") == 0
    assert part.limit("ionic_0", "max_mr") == Missing("file shows no max_mr of ionic_0")


def test_libibverbs_is_asked_for_real() -> None:
    part = verbs_devices.SOURCE.read(Context())
    if isinstance(part, Missing):
        pytest.skip(part.missing)
    kernel = Path("/sys/class/infiniband")
    assert {device.name for device in part.devices} <= {path.name for path in kernel.glob("*")}


def test_providers_are_found_in_multiarch_folders_and_named_by_path(tmp_path: Path) -> None:
    write_tree(
        """
        etc/libibverbs.d/mlx5.driver = driver mlx5
        etc/libibverbs.d/vendor.driver = driver /opt/vendor/lib/bnxt_re
        etc/libibverbs.d/note.txt = driver rxe
        usr/lib/aarch64-linux-gnu/libibverbs/libmlx5-rdmav34.so =
        usr/lib64/libibverbs.so.1 =
        """,
        tmp_path,
    )
    part = verbs_providers.SOURCE.read(Context(root=tmp_path, live=False))
    assert isinstance(part, VerbsProviders)
    assert part.drivers == ("bnxt_re", "mlx5")
    assert part.libraries == ("libibverbs.so.1", "libmlx5-rdmav34.so")
    assert (part.has("mlx5"), part.has("bnxt_re"), part.has("rxe")) == (True, False, False)


def test_the_root_of_the_named_process_is_preferred(tmp_path: Path) -> None:
    write_tree(
        "etc/libibverbs.d/mlx5.driver = driver mlx5\nproc/7/root/etc/os-release = ID=x\nproc/7/root/usr/lib/x =",
        tmp_path,
    )
    part = verbs_providers.SOURCE.read(Context(root=tmp_path, live=False, pid=7))
    assert isinstance(part, VerbsProviders)
    assert (part.root, part.drivers, part.libraries) == ("/proc/7/root", (), ())
    assert isinstance(part.libibverbs, Missing)
    assert part.rdma_core == part.libibverbs


def test_the_release_of_rdma_core_is_in_the_name_of_libibverbs(tmp_path: Path) -> None:
    write_tree("usr/lib64/libibverbs.so.1 -> libibverbs.so.1.14.50.0\netc/os-release = ID=x", tmp_path)
    part = verbs_providers.SOURCE.read(Context(root=tmp_path, live=False))
    assert isinstance(part, VerbsProviders)
    assert (part.libibverbs, part.rdma_core) == ("libibverbs.so.1.14.50.0", 50)


def test_nodes_are_read_from_a_listing(tmp_path: Path) -> None:
    write_tree(
        "commands/ls-dev-infiniband.txt = total 0\\n"
        "crw-rw---- 1 0 110 231, 192 Nov 20 08:00 uverbs0\\n"
        "crw-rw-rw-. 1 0 0 10, 122 Nov 20 08:00 rdma_cm\\n"
        "drwxr-xr-x 2 0 0 60 Nov 20 08:00 by-path",
        tmp_path,
    )
    part = device_nodes.SOURCE.read(Context(root=tmp_path, live=False))
    assert isinstance(part, DeviceNodes)
    assert [(node.name, node.mode, node.gid) for node in part.nodes] == [("rdma_cm", 0o666, 0), ("uverbs0", 0o660, 110)]


def test_no_folder_is_no_node(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    assert device_nodes.SOURCE.read(Context(root=tmp_path, live=True)) == DeviceNodes(nodes=())


def test_only_a_uverbs_character_device_is_ever_opened(tmp_path: Path) -> None:
    write_tree("dev/infiniband/umad0 = x\ndev/infiniband/uverbs0 = x", tmp_path)
    part = device_nodes.SOURCE.read(Context(root=tmp_path, live=True))
    assert isinstance(part, DeviceNodes)
    assert [isinstance(node.open_error, Missing) for node in part.nodes] == [True, True]


def test_transports_that_cannot_be_opened_are_marked() -> None:
    text = (
        "#      Transport: rc_mlx5\n#         Device: mlx5_0:1\n#   < failed to open interface >\n"
        "#      Transport: tcp\n#         Device: lo\n"
    )
    assert [(item.name, item.device, item.usable) for item in ucx_info.parse(text)] == [
        ("rc_mlx5", "mlx5_0:1", False),
        ("tcp", "lo", True),
    ]


def test_a_program_is_bounded_and_its_failure_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(_command, "TIMEOUT_S", 0.2)
    for name, body in (("kvdiag-slow", "sleep 5"), ("kvdiag-fails", "echo no device >&2; exit 3")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    context = Context()
    assert _command.output(context, "x", ("kvdiag-absent",)) == Missing("kvdiag-absent is not installed")
    assert _command.output(context, "x", ("kvdiag-slow",)) == Missing("kvdiag-slow did not end within 0 s")
    assert _command.output(context, "x", ("kvdiag-fails",)) == Missing("kvdiag-fails ended with status 3: no device")
