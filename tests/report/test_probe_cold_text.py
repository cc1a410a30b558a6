"""What `kvdiag probe cold` prints of a recorded result."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import msgspec
from rich.console import Console

from kvdiag.model.probe_cold import ColdDocument
from kvdiag.report.probe_cold_text import render

RECORDED = Path(__file__).parents[1] / "fixtures" / "reports" / "cold.json"


def shown(document: ColdDocument) -> list[str]:
    console = Console(width=200, file=StringIO())
    with console.capture() as text:
        console.print(render(document))
    return text.get().splitlines()


def test_the_steps_of_the_agent_are_told_from_those_of_an_engine() -> None:
    document = msgspec.json.decode(RECORDED.read_bytes(), type=ColdDocument)
    stages = tuple(
        replace(stage, again=replace(stage.again, value=1.5, low=1.2, high=2.0)) if stage.name == "peer" else stage
        for stage in document.stages
    )
    total = replace(document.total, value=1.6, low=0.0002, high=2.1)
    made = replace(document, stages=stages, total=total, steady=replace(document.steady, value=0.001))
    lines = shown(made)
    (peer,) = [line for line in lines if line.startswith("peer ") and "…" in line]
    assert " ".join(peer.split()).endswith(" 1.500 s 1.200 s … 2.000 s")
    (whole,) = [line for line in lines if line.startswith("total ")]
    assert " ".join(whole.split()).endswith(" 1.600 s 200.0 µs … 2.100 s")
    assert any(line.endswith("no step of an engine: 100.000 ms without, 100.0 times as long") for line in lines)


def test_a_few_rounds_have_no_interval_and_say_so() -> None:
    document = msgspec.json.decode(RECORDED.read_bytes(), type=ColdDocument)
    made = replace(document, total=replace(document.total, low=None, high=None))
    (whole,) = [line for line in shown(made) if line.startswith("total ")]
    assert whole.endswith("needs 5 rounds")
