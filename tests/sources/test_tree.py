"""Reading one file of this machine or of a copied tree."""

from pathlib import Path

import pytest

from kvdiag.model.missing import Missing
from kvdiag.sources.tree import LIMIT_BYTES, Tree


def test_kernel_settings_are_read_although_the_kernel_refuses_long_reads() -> None:
    found = Tree(Path("/")).read("/proc/sys/kernel/ostype")
    assert found == "Linux"


def test_a_file_of_the_longest_length_is_read_whole_and_one_byte_more_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    (tmp_path / "sys/long").write_text("a" * LIMIT_BYTES)
    assert Tree(tmp_path).read("/sys/long") == "a" * LIMIT_BYTES
    (tmp_path / "sys/long").write_text("a" * (LIMIT_BYTES + 1))
    found = Tree(tmp_path).read("/sys/long")
    assert isinstance(found, Missing)
    assert "longer than 1 MiB" in str(found)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a\0b"])
def test_bytes_that_are_no_text_are_no_attribute(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    (tmp_path / "sys/one").write_bytes(content)
    assert isinstance(Tree(tmp_path).read("/sys/one"), Missing)
