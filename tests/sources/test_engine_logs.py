import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvdiag.checks.base import Failed, Hosts, run
from kvdiag.model.engine_log import EngineLog, EngineLogs
from kvdiag.model.finding import Severity
from kvdiag.model.snapshot import Snapshot
from kvdiag.sources import engine_logs
from kvdiag.sources.base import Context, collect
from kvdiag.sources.engine_logs import SOURCE
from tests.trees import HOSTS, LOGS

LINE = (
    "W0224 11:00:23.687192 74625 w.cpp:320] Too many errors found in local RNIC 192.0.2.1:1@mlx5_{}, mark it inactive\n"
)


def read(*paths: Path) -> tuple[EngineLog, ...]:
    files = SOURCE.read(Context(logs=paths)).files
    assert isinstance(files, tuple)
    return files


def test_equal_lines_are_one_event_with_the_place_of_the_first(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("x\n" + LINE.format(0) * 3 + LINE.format(1))
    (file,) = read(log)
    assert [(event.fields["device"], event.count, event.place) for event in file.events] == [
        ("mlx5_0", 3, "line 2"),
        ("mlx5_1", 1, "line 5"),
    ]
    assert (file.lines, file.unread_bytes, file.merged) == (5, 0, 0)


def test_a_long_log_is_read_at_both_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_logs, "END_BYTES", 4096)
    log = tmp_path / "a.log"
    log.write_text(LINE.format(0) + "x\n" * 20_000 + LINE.format(5) + "x\n" * 20_000 + LINE.format(9))
    (file,) = read(log)
    assert [event.fields["device"] for event in file.events] == ["mlx5_0", "mlx5_9"]
    assert file.events[1].place == f"byte {log.stat().st_size - len(LINE.format(9))}"
    assert file.read_bytes == 8192
    assert file.unread_bytes == log.stat().st_size - 8192


def test_the_limit_that_is_set_bounds_a_huge_sparse_file(tmp_path: Path) -> None:
    log = tmp_path / "huge.log"
    log.write_text(LINE.format(0))
    os.truncate(log, 1 << 40)
    start = time.process_time()
    (file,) = read(log)
    assert file.read_bytes <= 2 * engine_logs.END_BYTES
    assert time.process_time() - start < 20


def test_very_many_different_events_are_merged_and_counted(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("".join(LINE.format(number) for number in range(2000)))
    (file,) = read(log)
    assert len(file.events) == 400
    assert file.merged == 1600
    assert sum(event.count for event in file.events) == 2000


def test_a_line_without_an_end_and_with_secrets_around_keeps_only_what_matched(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("secret " * 500_000 + LINE.format(0).strip() + " " + "token" * 500_000)
    (file,) = read(log)
    (event,) = file.events
    assert len(event.text) < 400


def test_what_is_no_text_says_so_and_hides_no_other(tmp_path: Path) -> None:
    binary, folder, fifo, good = (tmp_path / name for name in ("a.gz", "b", "c", "d.log"))
    binary.write_bytes(b"\x1f\x8b\x08\0\0\0\0")
    folder.mkdir()
    os.mkfifo(fifo)
    good.write_text(LINE.format(0))
    reasons = [file.unreadable for file in read(binary, folder, fifo, tmp_path / "absent", good)]
    assert reasons[4] is None
    assert [str(reason).partition(": ")[2] or str(reason) for reason in reasons[:4]] == [
        f"{binary} is not text (compressed? give the unpacked file)",
        f"{folder} is not a regular file",
        f"{fifo} is not a regular file",
        f"{tmp_path / 'absent'} does not exist",
    ]


def test_a_link_out_of_a_copied_tree_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside.log"
    outside.write_text(LINE.format(0))
    logs = tmp_path / "host" / "logs"
    logs.mkdir(parents=True)
    (logs / "a.log").symlink_to(outside)
    files = SOURCE.read(Context(root=tmp_path / "host", live=False)).files
    assert isinstance(files, tuple)
    assert files[0].unreadable == "/logs/a.log leads out of the tree"
    assert files[0].events == ()


def test_a_log_that_is_given_hides_none_of_a_copied_tree(tmp_path: Path) -> None:
    held = tmp_path / "host" / "logs" / "a.log"
    held.parent.mkdir(parents=True)
    held.write_text(LINE.format(0))
    own = tmp_path / "own.log"
    own.write_text(LINE.format(1))
    for given_logs, paths in (((own,), [str(own), "/logs/a.log"]), ((held,), [str(held)])):
        files = SOURCE.read(Context(root=tmp_path / "host", live=False, logs=given_logs)).files
        assert isinstance(files, tuple)
        assert [log.path for log in files] == paths
        assert all(len(log.events) == 1 for log in files)


PIECES = [line for path in sorted(LOGS.glob("*.log")) for line in path.read_bytes().splitlines()]


@pytest.fixture(scope="module")
def host() -> Snapshot:
    return collect(Context(root=HOSTS / "roce-bond", live=False))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(
        st.one_of(st.sampled_from(PIECES), st.binary(max_size=60), st.sampled_from(PIECES).map(lambda line: line[40:])),
        max_size=12,
    ),
    between=st.binary(max_size=3),
)
def test_no_log_makes_a_source_or_a_check_raise(
    lines: list[bytes], between: bytes, tmp_path: Path, host: Snapshot
) -> None:
    log = tmp_path / "any.log"
    log.write_bytes((between + b"\n").join(lines))
    parts = {**host.parts, EngineLogs: SOURCE.read(Context(logs=(log,)))}
    snapshot = Snapshot(host=host.host, time_s=host.time_s, parts=parts)
    for judged in run(Hosts(local=snapshot, peers=(snapshot,))):
        if isinstance(judged.outcome, Failed):
            assert not any("could not be run" in finding.summary for finding in judged.outcome.findings)


@pytest.mark.parametrize("name", ["vllm-decode-healthy.log", "ucx-rdma-lanes.log", "ucx-tcp-cma.log"])
def test_a_log_in_order_gives_no_finding(name: str) -> None:
    snapshot = collect(Context(root=HOSTS / "roce-bond", live=False, logs=(LOGS / name,)))
    findings = [
        finding
        for judged in run(Hosts(local=snapshot))
        if isinstance(judged.outcome, Failed)
        for finding in judged.outcome.findings
    ]
    assert findings == []


def test_flush_errors_and_peers_called_dead_never_lead() -> None:
    for name in ("nccl-retry-then-flush.log", "sglang-registration-then-dead.log", "nccl-only-flush.log"):
        snapshot = collect(Context(root=HOSTS / "dgx-8x-infiniband", live=False, logs=(LOGS / name,)))
        for judged in run(Hosts(local=snapshot)):
            if judged.check.code in ("WC005", "ENG015") and isinstance(judged.outcome, Failed):
                assert {finding.severity for finding in judged.outcome.findings} == {Severity.INFO}
