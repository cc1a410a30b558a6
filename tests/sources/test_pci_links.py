import struct
from pathlib import Path

from kvdiag.model.missing import Missing
from kvdiag.model.pci_link import PciLink, PciLinks
from kvdiag.sources import pci_links
from kvdiag.sources._pci_config import from_bytes, from_lspci
from kvdiag.sources.base import Context
from tests.trees import write_tree

LSPCI = """\
3a:00.0 PCI bridge: Intel Corporation Sapphire Rapids PCIe Root Port (rev 04)
	Capabilities: [40] Express (v2) Root Port (Slot+), MSI 00
		DevCtl:	CorrErr- NonFatalErr- FatalErr- UnsupReq-
			RlxdOrd- ExtTag+ PhantFunc- AuxPwr- NoSnoop-
		DevCap2: Completion Timeout: Range BC, TimeoutDis+ NROPrPrP- LTR+
			AtomicOpsCap: Routing- 32bit- 64bit- 128bitCAS-
	Capabilities: [110 v1] Access Control Services
		ACSCap:	SrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
		ACSCtl:	SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
0001:3b:00.0 Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7]
	Capabilities: [60] Express (v2) Endpoint, MSI 00
		DevCtl:	CorrErr+ NonFatalErr+ FatalErr+ UnsupReq+
			RlxdOrd+ ExtTag+ PhantFunc- AuxPwr- NoSnoop+ FLReset-
		DevCap2: Completion Timeout: Range ABC, TimeoutDis+ NROPrPrP- LTR-
			AtomicOpsCap: 32bit- 64bit+ 128bitCAS+
41:00.0 3D controller: NVIDIA Corporation GH100
	Capabilities: <access denied>
"""


def config(*, acs: int | None = None, control: int = 0, atomics: int = 0) -> bytes:
    """Return a configuration space with the PCI Express capability at 0x60 and, where asked, ACS at 0x148."""
    space = bytearray(4096)
    struct.pack_into("<H", space, 6, 0x10)
    space[0x34] = 0x40
    struct.pack_into("<BB", space, 0x40, 0x05, 0x60)
    struct.pack_into("<BB", space, 0x60, 0x10, 0x00)
    struct.pack_into("<H", space, 0x68, control)
    struct.pack_into("<I", space, 0x60 + 0x24, atomics)
    struct.pack_into("<I", space, 0x100, 0x0001 | 1 << 16 | 0x148 << 20)
    if acs is not None:
        struct.pack_into("<I", space, 0x148, 0x000D | 1 << 16)
        struct.pack_into("<HH", space, 0x148 + 4, 0x5F, acs)
    return bytes(space)


def test_settings_are_found_in_configuration_space() -> None:
    settings = from_bytes(config(acs=0b0011101, control=0x2810, atomics=0x180), "config")
    assert settings.acs == ("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd")
    assert settings.relaxed_ordering is True
    assert settings.atomic_completer_bits == (32, 64)
    plain = from_bytes(config(), "config")
    assert (plain.acs, plain.relaxed_ordering, plain.atomic_completer_bits) == ((), False, ())


def test_hidden_cut_and_looped_capabilities_are_missing_or_end() -> None:
    assert from_bytes(config(acs=1)[:64], "/c").acs == Missing("/c shows only its first 64 bytes without CAP_SYS_ADMIN")
    assert from_bytes(config(acs=1)[:0x62], "/c").acs == Missing("/c ends before its capabilities do")
    looped = bytearray(config())
    struct.pack_into("<BB", looped, 0x60, 0x01, 0x40)
    assert from_bytes(bytes(looped), "/c").relaxed_ordering == Missing("/c: not a PCI Express function")
    struct.pack_into("<I", looped, 0x148, 0x0002 | 1 << 16 | 0x100 << 20)
    assert from_bytes(bytes(looped), "/c").acs == ()


def test_settings_are_found_in_the_text_of_lspci() -> None:
    found = from_lspci(LSPCI, "lspci")
    assert sorted(found) == ["0000:3a:00.0", "0000:41:00.0", "0001:3b:00.0"]
    assert found["0000:3a:00.0"].acs == ("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd")
    assert found["0000:3a:00.0"].relaxed_ordering is False
    assert found["0000:3a:00.0"].atomic_completer_bits == ()
    assert found["0001:3b:00.0"].acs == ()
    assert found["0001:3b:00.0"].relaxed_ordering is True
    assert found["0001:3b:00.0"].atomic_completer_bits == (64, 128)
    assert found["0000:41:00.0"].acs == Missing("lspci, 0000:41:00.0: capabilities are shown to root only")


def test_link_path_window_and_group_of_a_function(tmp_path: Path) -> None:
    place = "sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0"
    write_tree(
        f"""
        sys/bus/pci/devices/0000:3b:00.0 -> ../../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0
        {place}/class = 0x020700
        {place}/current_link_speed = 16.0 GT/s PCIe
        {place}/current_link_width = 8
        {place}/max_link_speed = Unknown
        {place}/max_link_width = 255
        {place}/iommu_group -> ../../../../kernel/iommu_groups/17
        sys/kernel/iommu_groups/17/type = DMA-FQ
        {place}/resource = 0x2000000000 0x2001ffffff 0x000000000014220c\\n0x0 0x0 0x0
        sys/bus/pci/devices/0000:3c:00.0/class = 0x010802
        sys/bus/pci/devices/0000:3d:00.0/class = 0x030200
        sys/bus/pci/devices/0000:3d:00.0/resource = nonsense
        commands/lspci-vvv.txt = 3b:00.0 Infiniband controller: x\\n\\t\\tDevCtl:\\n\\t\\t\\tRlxdOrd+
        """,
        tmp_path,
    )
    part = pci_links.SOURCE.read(Context(root=tmp_path, live=False))
    assert isinstance(part, PciLinks)
    nic, gpu = part.functions
    assert nic == PciLink(
        address="0000:3b:00.0",
        class_code=0x020700,
        root="pci0000:3a",
        path=("0000:3a:00.0", "0000:3b:00.0"),
        speed_gtps=16.0,
        width=8,
        max_speed_gtps=Missing("/sys/bus/pci/devices/0000:3b:00.0/max_link_speed holds 'Unknown', not a speed in GT/s"),
        max_width=Missing("/sys/bus/pci/devices/0000:3b:00.0/max_link_width holds 255: no link width"),
        acs=(),
        relaxed_ordering=True,
        atomic_completer_bits=Missing("/commands/lspci-vvv.txt, 0000:3b:00.0: no AtomicOpsCap"),
        iommu_group="17",
        iommu_type="DMA-FQ",
        window_bytes=32 << 20,
    )
    assert isinstance(gpu.window_bytes, Missing)
    assert isinstance(gpu.acs, Missing)


def test_the_pci_functions_of_this_machine_can_be_read() -> None:
    part = pci_links.SOURCE.read(Context())
    assert isinstance(part, (PciLinks, Missing))
