from pathlib import Path

from kvdiag.model.kernel_log import KernelLog
from kvdiag.model.missing import Missing
from kvdiag.model.platform import Platform
from kvdiag.sources import kernel_log, platform
from kvdiag.sources.base import Context
from tests.trees import write_tree


def test_processor_and_product(tmp_path: Path) -> None:
    write_tree("sys/class/dmi/id/product_name = p5.48xlarge\nproc/cpuinfo =", tmp_path)
    (tmp_path / "proc/cpuinfo").write_text(
        "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: 13th Gen Intel(R) Core(TM) i9-13900K\n"
        "flags\t\t: fpu vme hypervisor lahf_lm\n\nprocessor\t: 1\n"
    )
    assert platform.SOURCE.read(Context(root=tmp_path, live=False)) == Platform(
        cpu_model="13th Gen Intel(R) Core(TM) i9-13900K",
        cpu_vendor="GenuineIntel",
        is_guest=True,
        vendor=Missing("/sys/class/dmi/id/sys_vendor does not exist"),
        product="p5.48xlarge",
    )


def test_arm_does_not_tell_whether_it_is_a_guest(tmp_path: Path) -> None:
    write_tree("proc/cpuinfo = processor: 0\\nFeatures: fp asimd\\nCPU implementer: 0x41", tmp_path)
    part = platform.SOURCE.read(Context(root=tmp_path, live=False))
    assert isinstance(part, Platform)
    assert part.cpu_vendor == "implementer 0x41"
    assert part.is_guest == Missing("/proc/cpuinfo of an Arm processor does not say whether this is a guest")


def test_the_kernel_log_keeps_the_newest_lines_about_rdma_and_gpus(tmp_path: Path) -> None:
    write_tree("commands/dmesg.txt = [    1.0] mlx5_core 0000:3b:00.0: x\\n[    2.0] EXT4-fs (sda1): mounted", tmp_path)
    part = kernel_log.SOURCE.read(Context(root=tmp_path, live=False))
    assert part == KernelLog(lines=("[    1.0] mlx5_core 0000:3b:00.0: x",), origin="/commands/dmesg.txt")
    lines = "\n".join(f"infiniband efa_0: {number}" for number in range(kernel_log.MOST_LINES + 5))
    (tmp_path / "commands/dmesg.txt").write_text(lines)
    part = kernel_log.SOURCE.read(Context(root=tmp_path, live=False))
    assert isinstance(part, KernelLog)
    assert (len(part.lines), part.lines[0]) == (kernel_log.MOST_LINES, "infiniband efa_0: 5")


def test_the_log_of_this_kernel_is_read_or_refused_with_a_reason() -> None:
    part = kernel_log.SOURCE.read(Context())
    assert isinstance(part, KernelLog) or "dmesg" in part.missing
