"""The sources of what a host is beside RDMA: interfaces, PCI functions, kernel, environment."""

from pathlib import Path

import pytest

from kvdiag.model.driver_versions import DriverVersion, DriverVersions
from kvdiag.model.interfaces import NetInterfaces
from kvdiag.model.kernel import Kernel
from kvdiag.model.missing import Missing
from kvdiag.model.pci import PciFunctions
from kvdiag.model.serving import Environment, Variable
from kvdiag.sources import driver_versions, environment, interfaces, kernel, pci
from kvdiag.sources.base import Context
from tests.trees import HOSTS, write_tree


def test_addresses_belong_to_the_interface_of_the_longest_route() -> None:
    part = interfaces.SOURCE.read(Context(root=HOSTS / "roce-bond", live=False))
    assert isinstance(part, NetInterfaces)
    found = {device.name: (device.mtu, device.addresses, device.bond_slaves) for device in part.devices}
    assert found["bond0"] == (9000, ("198.51.100.21",), ("ens1f0np0", "ens1f1np1"))
    assert found["bond1"] == (9000, ("198.51.100.85",), ("ens2f0np0", "ens2f1np1"))
    assert found["eth0"] == (1500, ("192.0.2.21",), ())


def test_ipv6_addresses_are_read(tmp_path: Path) -> None:
    write_tree(
        "sys/class/net/eth0/mtu = 1500\nsys/class/net/bonding_masters = bond0\n"
        "proc/net/if_inet6 = 20010db8000000000000000000000031 02 40 00 80     eth0\\nzz",
        tmp_path,
    )
    part = interfaces.SOURCE.read(Context(root=tmp_path, live=False))
    assert isinstance(part, NetInterfaces)
    assert [(device.name, device.addresses) for device in part.devices] == [("eth0", ("2001:db8::31",))]


def test_this_machine_has_a_loopback_interface() -> None:
    part = interfaces.SOURCE.read(Context())
    assert isinstance(part, NetInterfaces)
    loopback = part.named("lo")
    assert loopback is not None
    assert loopback.mtu == 65536


def test_pci_functions_with_and_without_driver(tmp_path: Path) -> None:
    base = "sys/bus/pci/devices"
    write_tree(
        f"""
        {base}/0000:18:00.0/vendor = 0x10de
        {base}/0000:18:00.0/device = 0x2330
        {base}/0000:18:00.0/class = 0x030200
        {base}/0000:18:00.0/driver -> ../../../bus/pci/drivers/vfio-pci
        {base}/0000:19:00.0/vendor = 0x15b3
        {base}/0000:19:00.0/device = 0x1021
        {base}/0000:19:00.0/class = 0x020700
        {base}/0000:20:00.0/vendor = junk
        """,
        tmp_path,
    )
    part = pci.SOURCE.read(Context(root=tmp_path, live=False))
    assert isinstance(part, PciFunctions)
    assert [(item.address, item.base_class, item.given_away) for item in part.functions] == [
        ("0000:18:00.0", 3, True),
        ("0000:19:00.0", 2, False),
    ]
    assert part.functions[1].driver == Missing("/sys/bus/pci/devices/0000:19:00.0/driver does not exist")


def test_kernel_facts(tmp_path: Path) -> None:
    write_tree("proc/modules = nvidia_peermem 16384 0 - Live 0x0\\nib_core 1 2 x, Live 0x0\nproc/meminfo = x", tmp_path)
    part = kernel.SOURCE.read(Context(root=tmp_path, live=False))
    assert isinstance(part, Kernel)
    assert part.modules == ("ib_core", "nvidia_peermem")
    assert part.memory_bytes == Missing("/proc/meminfo has no line MemTotal")
    assert part.huge_pages == Missing("/proc/meminfo has no line HugePages_Total")
    assert part.nvidia_version == Missing("/proc/driver/nvidia/version does not exist")


def test_only_listed_variables_leave_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp")
    monkeypatch.setenv("HF_TOKEN", "secret")
    expected = (Variable(name="UCX_TLS", value="tcp"),)
    assert environment.SOURCE.read(Context()) == Environment(variables=expected, origin="kvdiag's own environment")
    given = environment.SOURCE.read(Context(environ={"UCX_TLS": "tcp", "X": "y"}))
    assert given == Environment(variables=expected, origin="the given environment")
    write_tree("commands/env.txt = UCX_TLS=tcp\\nHF_TOKEN=secret\\nno pair", tmp_path)
    part = environment.SOURCE.read(Context(root=tmp_path, live=False))
    assert part == Environment(variables=expected, origin="/commands/env.txt")


def test_memory_and_huge_pages(tmp_path: Path) -> None:
    write_tree("proc/meminfo = MemTotal: 1024 kB\\nHugePages_Total:       7\\nHugepagesize:       2048 kB", tmp_path)
    part = kernel.SOURCE.read(Context(root=tmp_path, live=False))
    assert isinstance(part, Kernel)
    assert (part.memory_bytes, part.huge_pages, part.huge_page_bytes) == (1 << 20, 7, 2 << 20)


def test_drivers_of_the_distribution_tell_no_version(tmp_path: Path) -> None:
    write_tree(
        "sys/module/bnxt_re/version = 237.0.1.0\nsys/module/mlx5_core/refcnt = 3\nsys/module/x/version = 1", tmp_path
    )
    part = driver_versions.SOURCE.read(Context(root=tmp_path, live=False))
    assert isinstance(part, DriverVersions)
    assert part.drivers == (DriverVersion(module="bnxt_re", version="237.0.1.0"),)
    assert part.of("mlx5_core") == Missing("/sys/module/mlx5_core/version does not exist")
