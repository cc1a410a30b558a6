"""The costs that `kvdiag probe kv` prints, of a recorded result."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import msgspec
from rich.console import Console

from kvdiag.model.probe_kv import KvDocument
from kvdiag.report.probe_kv_text import render

RECORDED = Path(__file__).parents[1] / "fixtures" / "reports" / "kv.json"


def shown(document: KvDocument) -> str:
    console = Console(width=200, file=StringIO())
    with console.capture() as text:
        console.print(render(document))
    return text.get()


def test_what_bytes_cost_is_told_of_several_sizes_only() -> None:
    document = msgspec.json.decode(RECORDED.read_bytes(), type=KvDocument)
    assert "MiB/s of bytes" in shown(document) and "give more --tokens" not in shown(document)
    size = document.rows[0].bytes
    one_size = replace(document, rows=tuple(row for row in document.rows if row.bytes == size))
    text = shown(one_size)
    assert text.count("not told apart by one size: give more --tokens") == len(document.costs)
    assert "of bytes" not in text and "measurable" not in text
