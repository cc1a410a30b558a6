from pathlib import Path

from kvdiag.model.missing import Missing
from kvdiag.sources._command import Output, output
from kvdiag.sources.base import Context
from tests.trees import write_tree


def test_a_copied_tree_keeps_the_text_of_a_program(tmp_path: Path) -> None:
    context = Context(root=write_tree("commands/env.txt = A=1", tmp_path), live=False)
    assert output(context, "env", ()) == Output("A=1", "/commands/env.txt")


def test_binary_content_is_no_text_of_a_program(tmp_path: Path) -> None:
    context = Context(root=write_tree("commands/dmesg.txt = x", tmp_path), live=False)
    (tmp_path / "commands/dmesg.txt").write_bytes(b"\xff\xfe\0\x80")
    found = output(context, "dmesg", ())
    assert found == Missing("/commands/dmesg.txt is binary, not what a program printed")
