"""The costs that `kvdiag probe kv` prints, of a recorded result."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from kvdiag.model.probe_kv import KvDocument
from kvdiag.report.html.probe_kv import part
from kvdiag.report.probe_kv_text import render

RECORDED = Path(__file__).parents[1] / "fixtures" / "reports" / "kv.json"


def shown(document: KvDocument) -> str:
    console = Console(width=200, file=StringIO())
    with console.capture() as text:
        console.print(render(document))
    return text.get()


def test_what_bytes_cost_is_told_of_several_sizes_only() -> None:
    document = msgspec.json.decode(RECORDED.read_bytes(), type=KvDocument)
    assert "bytes nothing measurable" not in shown(document) and "give more --tokens" not in shown(document)
    size = document.rows[0].bytes
    one_size = replace(document, rows=tuple(row for row in document.rows if row.bytes == size))
    text = shown(one_size)
    assert text.count("not told apart by one size: give more --tokens") == len(document.costs)
    assert ", bytes " not in text


def test_a_fit_that_does_not_hold_is_no_result() -> None:
    document = msgspec.json.decode(RECORDED.read_bytes(), type=KvDocument)
    cost = document.costs[0]
    assert f"{cost.operation}: fixed 25.49 µs (18.82 … 32.16), a descriptor 2.00 µs" in shown(document)
    doubted = shown(replace(document, costs=(replace(cost, doubt="the fit does not hold: -61%; next: more"),)))
    assert f"{cost.operation}: the fit does not hold: -61%; next: more" in doubted
    assert "a descriptor" not in doubted and "not used for the fit" in doubted
    page = str(part(replace(document, costs=(replace(cost, doubt="it is off by 61%"),))).sections)
    assert page.count("does not hold") == 3 and "it is off by 61%" in page


def test_the_columns_of_a_layout_agree_with_each_other() -> None:
    document = msgspec.json.decode(RECORDED.read_bytes(), type=KvDocument)
    lines = shown(document).splitlines()
    (place,) = [number for number, line in enumerate(lines) if line.startswith("[µs]")]
    heads = lines[place].replace("of contiguous", "of_contiguous").split()
    assert heads[-4:] == ["total", "fastest", "MiB/s", "of_contiguous"]
    for line, row in zip(lines[place + 1 :], document.rows, strict=False):
        cells = dict(zip(heads[::-1], line.split()[::-1], strict=False))
        assert float(cells["MiB/s"]) == pytest.approx(row.bytes / row.total.value / (1 << 20), rel=0.01)
        assert float(cells["fastest"]) <= float(cells["total"])
