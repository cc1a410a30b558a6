"""The limits that `kvdiag probe register` prints."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import msgspec
from rich.console import Console

from kvdiag.model.probe_register import LimitRow, RegisterDocument
from kvdiag.report.probe_register_text import render

RECORDED = Path(__file__).parents[1] / "fixtures" / "reports" / "register.json"


def test_limits_have_their_units_and_no_limit_is_called_so() -> None:
    document = msgspec.json.decode(RECORDED.read_bytes(), type=RegisterDocument)
    limits = (
        LimitRow(name="memlock", allowed=None, reached=8192, status="not_reached", refusal=None),
        LimitRow(name="max_mr", allowed=100, reached=100, status="reached", refusal="ENOMEM"),
    )
    console = Console(width=200, file=StringIO())
    with console.capture() as text:
        console.print(render(replace(document, limits=limits)))
    lines = [" ".join(line.split()) for line in text.get().splitlines()]
    assert "memlock no limit 8192 bytes not reached" in lines
    assert "max_mr 100 regions 100 regions ENOMEM" in lines
