import json
import multiprocessing
from pathlib import Path

import pytest

from kvdiag.errors import InputError, UsageError
from kvdiag.sources import probe_history


def _append_many(path: Path, writer: int) -> None:
    for number in range(20):
        probe_history.append(path, json.dumps({"writer": writer, "number": number, "fill": "x" * 20_000}))


def test_lines_of_several_writers_stay_whole(tmp_path: Path) -> None:
    path = tmp_path / "history"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append_many, args=(path, writer)) for writer in range(3)]
    for process in writers:
        process.start()
    for process in writers:
        process.join(60)
    found = sorted((run["writer"], run["number"]) for run in probe_history.read(path))
    assert found == [(writer, number) for writer in range(3) for number in range(20)]


def test_a_torn_line_spoils_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "history"
    probe_history.append(path, '{"run": 1}')
    with path.open("a") as file:
        file.write('{"run": 2, "half')
    probe_history.append(path, '{\n  "run": 3\n}')
    assert [run["run"] for run in probe_history.read(path)] == [1, 3]


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_text("no\nhistory\n")
    with pytest.raises(InputError, match="none of its 2 lines"):
        list(probe_history.read(path))
    with pytest.raises(UsageError, match=r"--baseline .*No such file"):
        list(probe_history.read(tmp_path / "none"))
    with pytest.raises(UsageError, match=r"--out .*"):
        probe_history.append(tmp_path, "{}")
