from pathlib import Path

from kvdiag.model.missing import Missing
from kvdiag.sources._command import Output, output
from kvdiag.sources.base import Context
from kvdiag.sources.tree import Tree
from tests.trees import write_tree


def test_a_copied_tree_keeps_the_text_of_a_program(tmp_path: Path) -> None:
    context = Context(root=write_tree("commands/env.txt = A=1", tmp_path), live=False)
    assert output(context, "env", ()) == Output("A=1", "/commands/env.txt")


def test_binary_content_is_no_text_of_a_program(tmp_path: Path) -> None:
    context = Context(root=write_tree("commands/dmesg.txt = x", tmp_path), live=False)
    (tmp_path / "commands/dmesg.txt").write_bytes(b"\xff\xfe\0\x80")
    found = output(context, "dmesg", ())
    assert found == Missing("/commands/dmesg.txt is binary, not what a program printed")


def test_binary_content_is_no_value_of_an_attribute(tmp_path: Path) -> None:
    tree = Tree(write_tree("sys/class/net/eth0/mtu = 1500\nproc/7/environ = A=1", tmp_path))
    (tmp_path / "sys/class/net/eth0/mtu").write_bytes(b"15\xff00\n")
    assert tree.read("/sys/class/net/eth0/mtu") == Missing("/sys/class/net/eth0/mtu is binary, not text")
    (tmp_path / "proc/7/environ").write_bytes(b"A=\xff\0B=2\0")
    assert tree.read("/proc/7/environ") == "A=\ufffd\0B=2\0"
