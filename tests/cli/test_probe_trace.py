"""`--trace` of the probes that need a peer, over TCP on loopback."""

import itertools
from pathlib import Path

import pytest

from kvdiag.cli import main
from kvdiag_probes import tracing
from tests.report.trace_format import events_of, tracks

SMALL_KV = ("--layers", "2", "--kv-heads", "1", "--head-size", "64", "--tokens", "16", "--op", "write", "--rounds", "1")
SMALL_COLD = ("--transport", "tcp", "--size", "4KiB", "--rounds", "1", "--steady", "1")


pytestmark = pytest.mark.usefixtures("token")


def test_a_bandwidth_probe_shows_stages_passes_and_overlapping_operations(peer: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    arguments = ["--transport", "tcp", "--size", "4KiB", "--iterations", "40", "--queue-depth", "4", "--rounds", "2"]
    assert main(["probe", "bandwidth", peer, *arguments, "--trace", str(path)]) == 0
    found = tracks(events_of(path.read_text()))
    (whole,) = found["probe"]
    ends = [(one["ts"], one["ts"] + one["dur"]) for slices in found.values() for one in slices]
    assert all(whole["ts"] <= start and end <= whole["ts"] + whole["dur"] + 1e-3 for start, end in ends)
    # Of each round: the first message, the warm-up, and the messages that count.
    assert [one["args"]["messages"] for one in found["rounds"]] == [1, 32, 40] * 2
    operations = [one for name, slices in found.items() if name.startswith("operations") for one in slices]
    assert len(operations) == 2 * (1 + 32 + 40)
    # At a depth of four, at most four are under way at a time; TCP takes the next when the oldest is done.
    assert {name for name in found if name.startswith("operations")} <= {
        "operations",
        *(f"operations ({lane})" for lane in (2, 3, 4)),
    }
    assert {"operations", "operations (2)"} <= found.keys()


def counters(text: str) -> dict[str, list[float]]:
    """Return the values of every counter in the order of time."""
    found: dict[str, list[float]] = {}
    for event in events_of(text):
        if event["ph"] == "C":
            found.setdefault(event["name"], []).append(event["args"]["value"])
    return found


def test_counters_show_what_was_moved_and_how_fast(peer: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    arguments = ["--transport", "tcp", "--size", "4KiB", "--iterations", "40", "--rounds", "1", "--warmup", "0"]
    assert main(["probe", "bandwidth", peer, *arguments, "--trace", str(path)]) == 0
    found = counters(path.read_text())
    rounds = tracks(events_of(path.read_text()))["rounds"]
    speeds = found["bytes per second"]
    assert speeds[1::2] == [0.0] * len(rounds)
    expected = [one["args"]["bytes"] / (one["dur"] * 1e-6) for one in rounds]
    assert speeds[::2] == pytest.approx(expected, rel=0.05)
    start, end = found["TCP bytes sent"]
    assert start == 0 and end >= 40 * 4096


def test_a_latency_probe_shows_each_message_after_the_other(peer: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    arguments = ["--transport", "tcp", "--size", "64", "--iterations", "20", "--warmup", "0"]
    assert main(["probe", "latency", peer, *arguments, "--trace", str(path)]) == 0
    found = tracks(events_of(path.read_text()))
    assert len(found["operations"]) == 1 + 20 and "operations (2)" not in found
    pairs = itertools.pairwise(found["operations"])
    assert all(before["ts"] + before["dur"] <= after["ts"] + 1e-3 for before, after in pairs)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["kv", *SMALL_KV, "--transport", "tcp", "--repeats", "2"], {"rounds": 8, "operations": 8}),
        (
            ["compare", "--methods", "tcp-write,tcp-read", "--size", "4KiB", "--iterations", "4", "--rounds", "1"],
            {"probe": 1},
        ),
        (["cold", *SMALL_COLD], {"rounds": 2, "stages": 8}),
    ],
)
def test_the_other_probes_have_their_rounds(
    arguments: list[str], names: dict[str, int], peer: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    command, *rest = arguments
    assert main(["probe", command, peer, *rest, "--trace", str(path)]) == 0
    found = tracks(events_of(path.read_text()))
    assert {name: len(found[name]) for name in names} == names
    assert found["probe"][0]["name"] == f"kvdiag probe {command}"
    speeds = counters(path.read_text())["bytes per second"]
    assert max(speeds) > 0 and speeds[-1] == 0


def test_a_probe_that_fails_leaves_what_it_did_and_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json"
    command = ["probe", "bandwidth", "127.0.0.1:1", "--transport", "tcp", "--trace", str(path)]
    assert main(command) == 69
    (whole,) = tracks(events_of(path.read_text()))["probe"]
    assert whole["args"]["failed"].startswith("RefusedConnectionError: 127.0.0.1:1: Connection refused")
    capsys.readouterr()
    assert main([*command[:-1], str(tmp_path / "absent" / "trace.json")]) == 64
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "absent/trace.json: there is no folder" in err


def test_beyond_the_bound_slices_are_counted_and_dropped() -> None:
    recorder = tracing.Recorder(most=3)
    with tracing.recording(recorder):
        for number in range(5):
            tracing.add(tracing.ROUNDS, "one", number, 0.5)
    assert len(recorder.trace().slices) == 3
    assert recorder.trace().about == {"dropped_slices": "2"}
    with tracing.recording(recorder):
        for number in range(3):
            tracing.rate(tracing.THROUGHPUT, number, 0.5, 100.0)
    assert [one.value for one in recorder.trace().counters] == [200.0, 0.0, 200.0]
    assert recorder.dropped == 5
    tracing.add(tracing.ROUNDS, "one", 9, 0.5)
    tracing.growth("x", 0.0, 1.0)
    assert recorder.dropped == 5
