"""Tables of probes in a terminal of any width."""

import re
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console, RenderableType

from kvdiag.derive.intervals import metric
from kvdiag.model.probe import ProbeDocument
from kvdiag.model.probe_cold import ColdDocument
from kvdiag.model.probe_compare import CompareDocument
from kvdiag.model.probe_connections import ConnectionsDocument
from kvdiag.model.probe_kv import KvDocument
from kvdiag.model.probe_register import RegisterDocument
from kvdiag.report import (
    probe_cold_text,
    probe_compare_text,
    probe_connections_text,
    probe_kv_text,
    probe_register_text,
    probe_text,
)
from kvdiag.report.probe_parts import incomplete, table

RECORDED = Path(__file__).parents[1] / "fixtures" / "reports"
SHOWN: dict[str, tuple[Any, Any]] = {
    "bandwidth": (ProbeDocument, probe_text.render),
    "latency": (ProbeDocument, probe_text.render),
    "cold": (ColdDocument, probe_cold_text.render),
    "compare": (CompareDocument, probe_compare_text.render),
    "connections": (ConnectionsDocument, probe_connections_text.render),
    "kv": (KvDocument, probe_kv_text.render),
    "register": (RegisterDocument, probe_register_text.render),
}


def shown(content: RenderableType, width: int, *, soft_wrap: bool = False) -> str:
    console = Console(width=width, file=StringIO(), soft_wrap=soft_wrap)
    with console.capture() as text:
        console.print(content)
    return text.get()


@pytest.mark.parametrize("name", SHOWN)
def test_no_figure_of_a_probe_is_lost_in_forty_columns(name: str) -> None:
    kind, render = SHOWN[name]
    document = msgspec.json.decode((RECORDED / f"{name}.json").read_bytes(), type=kind)
    wide, narrow = shown(render(document), 400), shown(render(document), 40)
    assert max(len(line) for line in narrow.splitlines()) <= 40
    # What is longer than a line is folded: every figure is there, in order of the text around it.
    folded = narrow.replace("\n", "")
    for figure in re.findall(r"\d[\d.]*", wide):
        assert figure in folded, figure


def test_a_table_that_fits_and_one_in_a_file_stay_tables() -> None:
    made = table(("#bytes", "BW average[MiB/s]", "t_p50[µs]"), [("4096", "138.10", "12.5"), ("64", "7.2", "1.0")])
    lines = ["#bytes  BW average[MiB/s]  t_p50[µs]", "4096               138.10       12.5"]
    assert shown(made, 36).splitlines()[:2] == lines
    assert shown(made, 20, soft_wrap=True).splitlines()[:2] == lines
    text = shown(made, 35)
    assert " ".join(text.split()) == (
        "#bytes 4096: BW average[MiB/s] 138.10, t_p50[µs] 12.5 #bytes 64: BW average[MiB/s] 7.2, t_p50[µs] 1.0"
    )


def test_a_run_that_failed_says_how_many_rounds_there_are_of_how_many() -> None:
    whole, more = metric("a", "seconds", "lower", [1.0] * 6), metric("b", "seconds", "lower", [1.0] * 7)
    assert incomplete(None, [whole], 200) == []
    assert incomplete("lost", [whole, whole], 200)[0].plain.endswith("the run failed; these are 6 of 200 rounds")
    assert incomplete("lost", [more, whole], 200)[0].plain.endswith("these are 6 to 7 of 200 rounds")
    assert incomplete("lost")[0].plain.endswith("these are the rounds before that")
