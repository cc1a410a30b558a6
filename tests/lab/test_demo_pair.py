"""One recording cut into a bundle for each kind of fault; the machines are not needed for that."""

import json
from pathlib import Path

from tests.lab.demo_pair import MARGIN_S, Part, cut


def lines(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_part_has_its_requests_and_the_counters_around_it(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    zero_s = 1000.0
    arrivals = [zero_s + 0.5 + second for second in range(20)]
    whole.joinpath("requests.jsonl").write_text("".join(f'{{"arrival_s": {at}}}\n' for at in reversed(arrivals)))
    whole.joinpath("counters.jsonl").write_text("".join(f'{{"time_s": {zero_s + t}}}\n' for t in range(-5, 30)))
    whole.joinpath("meta.json").write_text('{"schema": "kvdiag.bundle/1"}')
    parts = (Part("0-none", "none", 0.0, 5.0, 10.0), Part("1-loss", "loss", 10.0, 15.1, 20.0))
    cut(tmp_path, parts, first_offset_s=0.5)
    assert sorted(row["arrival_s"] for row in lines(tmp_path / "1-loss/requests.jsonl")) == arrivals[10:]
    assert len(lines(tmp_path / "0-none/requests.jsonl")) == 10
    times = [row["time_s"] - zero_s for row in lines(tmp_path / "1-loss/counters.jsonl")]
    assert (min(times), max(times)) == (10 - MARGIN_S, 20 + MARGIN_S - 1)
    assert (tmp_path / "0-none/meta.json").read_text() == (whole / "meta.json").read_text()
