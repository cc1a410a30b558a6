from pathlib import Path

import pytest

from tests.trees import write_peer_tree, write_tree


def test_entries_are_written_in_order_over_a_base(tmp_path: Path) -> None:
    text = "# x\nbase no-rdma\n- proc/7171\nproc/modules = a\\nb\nproc/x/\nproc/y -> nowhere\npeer: proc/z = 1"
    root = write_tree(text, tmp_path / "host")
    assert not (root / "proc/7171").exists()
    assert (root / "proc/modules").read_text() == "a\nb\n"
    assert (root / "proc/x").is_dir()
    assert (root / "proc/y").is_symlink()
    assert not (root / "proc/z").exists()
    peer = write_peer_tree(text, tmp_path / "peer")
    assert peer is not None
    assert (peer / "proc/z").read_text() == "1\n"
    assert write_peer_tree("a = b", tmp_path / "none") is None


def test_nothing_is_written_outside_the_tree(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="outside the tree"):
        write_tree("out -> ../..\nout/x = 1", tmp_path / "host")
    with pytest.raises(ValueError, match="not a tree entry"):
        write_tree("nonsense", tmp_path / "host")
