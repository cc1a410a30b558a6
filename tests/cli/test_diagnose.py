import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kvdiag.cli import main
from kvdiag.model.bundle import Bundle
from kvdiag.report.json import published_schema
from tests.attribution.synthetic import START_S, World, simulate
from tests.derive.recorded_files import aiperf, rows, spans, write_otlp

BUNDLES = Path(__file__).parents[1] / "fixtures/bundles"
TRANSFERS = Path(__file__).parents[1] / "fixtures/transfers"


def write_bundle(bundle: Bundle, folder: Path) -> Path:
    """Write requests, counters and meta.json as the recorder does."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers, labels = bundle.requests.numbers, bundle.requests.labels
    with (folder / "requests.jsonl").open("w") as file:
        for row, request_id in enumerate(bundle.requests.ids):
            record: dict[str, Any] = {"request_id": request_id}
            record |= {name: float(values[row]) for name, values in numbers.items()}
            record |= {name: label.names[label.codes[row]] for name, label in labels.items()}
            file.write(json.dumps(record) + "\n")
    with (folder / "counters.jsonl").open("w") as file:
        for one in bundle.series:
            for time_s, value in zip(one.time_s.tolist(), one.value.tolist(), strict=True):
                line = {"time_s": time_s, "node": one.node, "device": None, "metric": one.metric, "value": value}
                file.write(json.dumps(line) + "\n")
    meta = {"schema": "kvdiag.bundle/1", "sampling": 1, "incident_start_s": bundle.incident_start_s}
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["diagnose", "--format", "json", *arguments])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, published_schema("kvdiag.diagnose-1"))
    return code, document


@pytest.mark.parametrize("folder", sorted(path.parent for path in BUNDLES.glob("*/truth.json")), ids=lambda p: p.name)
def test_recorded_clusters(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    causes = json.loads((folder / "truth.json").read_text())["causes"]
    code, document = as_json(capsys, str(folder))
    if not causes:
        assert (code, document["verdict"]["cause"]) == (0, None)
        return
    assert document["verdict"]["cause"] == causes[0]["id"]
    assert document["causes"][0]["id"] == causes[0]["id"]
    assert code in (1, 2)
    assert 0.5 < document["causes"][0]["excess_mean_s"] / causes[0]["excess_mean_s"] < 1.5
    if causes[0]["nodes"]:
        assert set(document["causes"][0]["nodes"]) <= set(causes[0]["nodes"])


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("registration-on-path", "registration.on_path"),
        ("link-degraded", "fabric.link_degraded"),
        ("link-degraded-busy", "fabric.link_degraded"),
        ("layout-fragmented-busy", "layout.fragmented"),
    ],
)
def test_recorded_transfers(name: str, cause: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = as_json(capsys, str(TRANSFERS / name))
    assert (code, document["verdict"]["cause"]) == (2, cause)
    assert document["data"]["split"].startswith("found by CUSUM")
    excess = document["incident"]["mean_s"] - document["baseline"]["mean_s"]
    assert document["causes"][0]["excess_mean_s"] > 0.6 * excess


def test_files_of_the_same_requests_are_joined_and_diagnosed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = rows(simulate(World(seed=2, fault="layout", requests=600, serial=False)))
    traces = write_otlp(tmp_path / "traces.json", [spans(one) for one in found])
    client = tmp_path / "profile_export.jsonl"
    client.write_text("\n".join(aiperf(one) for one in found[:-3]) + "\n")
    code, document = as_json(capsys, str(traces), str(client))
    assert (code, document["verdict"]["cause"]) == (2, "layout.fragmented")
    assert document["origin"] == f"{traces}, {client}"
    notes = document["data"]["notes"]
    count = f"{len(found):,}"
    assert f"{count} of {count} requests joined from prefill to decode" in notes
    assert "3 request(s) of the engines that no client's file has left out" in notes
    assert document["data"]["requests"] == len(found) - 3
    assert main(["diagnose", str(traces), str(client)]) == code
    assert "joined by request id" in capsys.readouterr().out


def test_two_bundles_are_not_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(TRANSFERS / "no-fault")
    assert main(["diagnose", folder, folder]) == 64
    assert "--compare BEFORE AFTER" in capsys.readouterr().err
    assert main(["diagnose", folder, str(tmp_path)]) == 64
    assert str(tmp_path) in capsys.readouterr().err


def test_recorded_transfers_without_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = as_json(capsys, str(TRANSFERS / "no-fault"))
    assert (code, document["verdict"]["status"], document["baseline"]) == (0, "no_change", None)


@pytest.mark.parametrize(
    ("world", "start", "code", "status"),
    [
        (World(seed=1), None, 0, "no_change"),
        (World(seed=1, fault="layout"), None, 2, "cause"),
        (World(seed=1, fault="layout"), START_S + 30, 2, "cause"),
        (World(seed=1, requests=60), None, 3, "abstain"),
        (World(seed=1, neighbour=2.5), None, 3, "abstain"),
    ],
)
def test_exit_codes(
    world: World, start: float | None, code: int, status: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = simulate(world)
    if start is not None:
        bundle = replace(bundle, incident_start_s=None)
    arguments = [] if start is None else ["--incident-start", str(start)]
    found, document = as_json(capsys, str(write_bundle(bundle, tmp_path)), *arguments)
    assert (found, document["verdict"]["status"]) == (code, status)
    assert (status == "abstain") == bool(document["verdict"]["collect_next"])


def test_text_starts_with_the_verdict_and_explains_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_bundle(simulate(World(seed=1, fault="registration")), tmp_path)
    assert main(["diagnose", str(folder)]) == 2
    short = capsys.readouterr().out
    assert main(["diagnose", str(folder), "--explain"]) == 2
    full = capsys.readouterr().out
    assert short.startswith("CRITICAL (confidence ")
    assert "registration.on_path adds" in short.splitlines()[0]
    assert "register_s" in short
    assert "How this was reached" not in short
    assert "Var(TTFT)" in full.split("How this was reached")[1]
    assert "sum: 100.00%" in full
    assert "…" not in full  # nothing is cut off


def test_no_change_is_said_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(write_bundle(simulate(World(seed=1)), tmp_path))]) == 0
    assert capsys.readouterr().out.startswith("NO CHANGE")


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "requests.jsonl").write_text('{"request_id": "a", "arrival_s": 1, "ttft_s": -1, "wire_s": 0}\n')
    assert main(["diagnose", str(tmp_path)]) == 64
    error = capsys.readouterr().err
    assert error.startswith(f"kvdiag: error: {tmp_path}/requests.jsonl line 1: ttft_s is -1")
    assert error.count("\n") == 1


def test_a_start_outside_the_recording_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_bundle(simulate(World(seed=1)), tmp_path)
    assert main(["diagnose", str(folder), "--incident-start", "5"]) == 64
    assert "--incident-start 5.000 is outside" in capsys.readouterr().err


def test_two_recordings_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    healthy = write_bundle(simulate(World(seed=1, serial=False, always=True)), tmp_path / "before")
    layout = write_bundle(simulate(World(seed=2, fault="layout", serial=False, always=True)), tmp_path / "after")
    code, document = as_json(capsys, "--compare", str(healthy), str(layout))
    assert (code, document["verdict"]["cause"]) == (2, "layout.fragmented")
    assert document["origin"] == f"{healthy} → {layout}"
    code, document = as_json(capsys, "--compare", str(layout), str(healthy))
    assert code == 0


def test_a_timeline_is_written_beside_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_bundle(simulate(World(seed=1, serial=False)), tmp_path / "bundle")
    assert main(["diagnose", str(folder), "--trace", str(tmp_path / "trace.json")]) == 0
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" and event.get("cat") == "request" for event in events) > 100
    assert "NO CHANGE" in capsys.readouterr().out
    assert main(["diagnose", str(folder), "--trace", str(tmp_path / "no" / "trace.json")]) == 64
    assert "--trace" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "one of the three"),
        (("x", "--prometheus", "http://y"), "one of the three"),
        (("x", "--start", "1"), "belong to --prometheus"),
        (("--prometheus", "http://y"), "needs --start and --end"),
        (("--prometheus", "http://y", "--start", "yesterday", "--end", "2"), "--start yesterday: neither"),
        (("--prometheus", "y", "--start", "1", "--end", "2026-11-29T20:15:00Z"), "not an http"),
    ],
)
def test_what_to_diagnose_must_be_plain(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", *arguments]) == 64
    error = capsys.readouterr().err
    assert words in " ".join(error.split())
