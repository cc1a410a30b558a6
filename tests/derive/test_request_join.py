import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvdiag.derive.in_order import by_size, by_time
from kvdiag.derive.request_join import _rows, joined, seen_by_clients
from kvdiag.errors import UndeterminedError, UsageError
from kvdiag.model.bundle import Bundle
from kvdiag.model.records import RecordsDocument
from kvdiag.model.request_file import SpanFile
from kvdiag.report.json import encode
from kvdiag.sources.request_files import read_request_files
from tests.attribution.synthetic import World, simulate
from tests.derive.recorded_files import aiperf, bench, guidellm, rows, spans, write_otlp, write_ring

BUNDLE = simulate(World(seed=4, requests=60, serial=False))
ROWS = rows(BUNDLE)


def otlp(folder: Path, requests: list[dict[str, Any]] = ROWS, **given: bool) -> Path:
    return write_otlp(folder / "traces.json", [spans(one, **given) for one in requests])


def of(*paths: Path) -> Bundle:
    return joined([file for path in paths for file in read_request_files(path)])


def recorded(bundle: Bundle, name: str) -> np.ndarray:
    """Return a column of the simulated recording in the order of the joined rows."""
    order = [int(text.removeprefix("req-")) for text in bundle.requests.ids]
    values: np.ndarray = BUNDLE.requests.numbers[name][order]
    return values


def test_spans_of_both_sides_become_the_rows_that_were_recorded(tmp_path: Path) -> None:
    found = of(otlp(tmp_path))
    assert len(found.requests) == len(ROWS)
    for name in (
        "arrival_s",
        "ttft_s",
        "queue_s",
        "prefill_s",
        "first_step_s",
        "prompt_tokens",
        "bytes",
        "descriptors",
    ):
        assert found.requests.numbers[name] == pytest.approx(recorded(found, name), abs=2e-6), name
    moving = recorded(found, "post_s") + recorded(found, "wire_s")
    assert found.requests.numbers["transfer_s"] == pytest.approx(moving, abs=2e-6)
    assert set(found.requests.labels["prefill_node"].names) == {"vllm-prefill"}
    assert f"{len(ROWS)} of {len(ROWS)} requests joined from prefill to decode" in found.notes
    assert any(note.startswith("not plainly measured") and "ttft_s derived in" in note for note in found.notes)


def test_what_lacks_a_side_is_counted_and_left_out(tmp_path: Path) -> None:
    path = write_otlp(tmp_path / "t.json", [spans(one, decode=n >= 7, transfers=False) for n, one in enumerate(ROWS)])
    found = of(path)
    assert len(found.requests) == len(ROWS) - 7
    line = f"{len(ROWS) - 7} of {len(ROWS)} requests joined from prefill to decode; 7 have no decode span"
    assert line in found.notes
    assert "7 request(s) without a first token left out" in found.notes


def test_the_sides_may_come_in_files_of_their_own_in_any_order_and_twice(tmp_path: Path) -> None:
    sides = [
        write_otlp(tmp_path / name, [[spans(one, transfers=False)[side]] for one in reversed(ROWS)])
        for side, name in enumerate(("prefill.json", "decode.json"))
    ]
    once, twice = of(*sides), of(sides[1], sides[0], sides[0])
    assert list(once.requests.ids) == list(twice.requests.ids)
    assert once.requests.numbers["kv_wait_s"] == pytest.approx(twice.requests.numbers["kv_wait_s"])


def test_ids_that_a_load_generator_repeats_are_told_apart_by_their_traces(tmp_path: Path) -> None:
    again = [one | {"id": f"req-{n % 20}"} for n, one in enumerate(ROWS)]
    client = tmp_path / "profile_export.jsonl"
    client.write_text("\n".join(aiperf(one) for one in again))
    found = of(otlp(tmp_path, again, transfers=False), client)
    assert len(found.requests) == len(ROWS)
    assert "20 id(s) were used by several requests, which their traces tell apart" in found.notes
    assert found.requests.numbers["ttft_s"] == pytest.approx(BUNDLE.requests.numbers["ttft_s"] + 0.004, abs=1e-5)


def test_aiperf_is_joined_by_request_id_and_gives_its_own_ttft(tmp_path: Path) -> None:
    client = tmp_path / "profile_export.jsonl"
    client.write_text("\n".join(aiperf(one) for one in ROWS[5:]) + "\n")
    found = of(otlp(tmp_path), tmp_path)
    assert f"{client} (AIPerf): {len(ROWS) - 5} of {len(ROWS) - 5} requests joined by request id" in found.notes
    assert "5 request(s) of the engines that no client's file has left out" in found.notes
    assert found.requests.numbers["ttft_s"] == pytest.approx(recorded(found, "ttft_s") + 0.004, abs=1e-5)
    assert found.requests.numbers["arrival_s"] == pytest.approx(recorded(found, "arrival_s") - 0.002, abs=1e-5)


def test_guidellm_is_joined_by_the_id_that_the_engine_answered_with(tmp_path: Path) -> None:
    client = tmp_path / "benchmarks.json"
    client.write_text(json.dumps(guidellm(ROWS), indent=1))
    found = of(client, otlp(tmp_path))
    assert f"{client} (GuideLLM): {len(ROWS)} of {len(ROWS)} requests joined by request id" in found.notes
    assert found.requests.numbers["ttft_s"] == pytest.approx(recorded(found, "ttft_s") + 0.004, abs=1e-5)


@pytest.mark.parametrize("numbered", [True, False])
def test_vllm_bench_is_joined_by_number_or_by_order(tmp_path: Path, numbered: bool) -> None:
    named = [one | {"id": f"bench-1a2b3c4d-{n}" if numbered else f"{n * 7919:08x}"} for n, one in enumerate(ROWS)]
    client = tmp_path / "result.json"
    client.write_text(json.dumps(bench(ROWS)))
    found = of(otlp(tmp_path, named), client)
    assert len(found.requests) == len(ROWS)
    assert found.requests.numbers["ttft_s"] == pytest.approx(BUNDLE.requests.numbers["ttft_s"] + 0.004, abs=1e-5)
    assert found.requests.numbers["arrival_s"] == pytest.approx(BUNDLE.requests.numbers["arrival_s"], abs=0.01)
    note = next(one for one in found.notes if one.startswith(str(client)))
    assert ("joined by their number" if numbered else "joined by their order in time and prompt tokens") in note
    assert any("ttft_s estimated in" in one for one in found.notes) is not numbered
    assert ("is estimated" in note) and f"{len(ROWS)} of {len(ROWS)}" in note


def test_another_runs_client_is_not_used(tmp_path: Path) -> None:
    late = [one | {"arrival_s": one["arrival_s"] + 3600, "id": f"other-{n}"} for n, one in enumerate(ROWS)]
    client = tmp_path / "profile_export.jsonl"
    client.write_text("\n".join(aiperf(one) for one in late))
    found = of(otlp(tmp_path), client)
    assert found.requests.numbers["ttft_s"] == pytest.approx(recorded(found, "ttft_s"), abs=1e-5)
    assert any("not used" in note and "share no id" in note for note in found.notes)


@pytest.mark.parametrize("behind_s", [0.05, 10.0])
def test_a_decode_clock_that_is_behind_is_put_forward(tmp_path: Path, behind_s: float) -> None:
    exports = [spans(one, transfers=False) for one in ROWS]
    path = write_otlp(tmp_path / "t.json", [[one[0], later(one[1], -behind_s)] for one in exports])
    found = of(path)
    assert any("behind the prefill side's" in note for note in found.notes)
    assert len(found.requests) >= len(ROWS) - 1
    quickest = min(one["ttft_s"] - one["queue_s"] - one["prefill_s"] - one["first_step_s"] for one in ROWS)
    lost = recorded(found, "ttft_s") - found.requests.numbers["ttft_s"]
    assert lost == pytest.approx(np.full(len(lost), quickest), abs=2e-3)


def test_a_decode_clock_that_is_ahead_is_said(tmp_path: Path) -> None:
    exports = [spans(one, transfers=False) for one in ROWS]
    found = of(write_otlp(tmp_path / "t.json", [[one[0], later(one[1], 1.5)] for one in exports]))
    assert any("at least 1.500 s after its prefill ended" in note for note in found.notes)
    assert not any("a clock that is ahead" in note for note in of(otlp(tmp_path)).notes)


def later(export: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return the export of a span on a clock that is ahead."""
    moved: dict[str, Any] = json.loads(json.dumps(export))
    span = moved["scopeSpans"][0]["spans"][0]
    for name in ("startTimeUnixNano", "endTimeUnixNano"):
        span[name] = str(int(span[name]) + round(seconds * 1e9))
    return moved


def test_a_ring_of_nixl_gives_transfers_by_their_order(tmp_path: Path) -> None:
    ring = write_ring(tmp_path / "decode-0", ROWS[10:40])
    found = of(otlp(tmp_path, transfers=False), ring)
    whole, without = found.requests, of(otlp(tmp_path, transfers=False)).requests
    assert "kv_wait_s" in without.numbers
    assert any("30 transfers of agent decode-0 joined to requests of vllm-decode" in note for note in found.notes)
    # Two thirds have transfers of their own: the rest tells no more than the whole wait, so all of them do.
    assert "transfer_s" not in whole.numbers
    assert np.isfinite(whole.numbers["bytes"]).sum() == 30
    every = of(otlp(tmp_path, transfers=False), write_ring(tmp_path / "decode-0", ROWS)).requests
    moving = [one["post_s"] + one["wire_s"] for one in ROWS]
    assert every.numbers["transfer_s"] == pytest.approx(moving, abs=3e-6)
    assert every.numbers["bytes"] == pytest.approx([one["bytes"] for one in ROWS])


def test_a_ring_of_the_pushing_side_gives_them_too(tmp_path: Path) -> None:
    ring = write_ring(tmp_path / "prefill-0", ROWS, push=True)
    found = of(otlp(tmp_path, transfers=False), ring)
    assert any("joined to requests of vllm-prefill" in note for note in found.notes)
    assert found.requests.labels["direction"].names == ("push",)
    assert found.requests.numbers["transfer_s"] == pytest.approx([o["post_s"] + o["wire_s"] for o in ROWS], abs=3e-6)


def test_a_ring_that_fits_nowhere_is_not_used(tmp_path: Path) -> None:
    other = [one | {"bytes": one["bytes"] * (1 + n % 3)} for n, one in enumerate(ROWS)]
    found = of(otlp(tmp_path, transfers=False), write_ring(tmp_path / "decode-0", other[:30]))
    assert "transfer_s" not in found.requests.numbers
    assert any("their order by size fits no node" in note for note in found.notes)


@pytest.mark.parametrize("lone", ["aiperf", "ring", "foreign", "prefill"])
def test_what_tells_no_stage_says_what_to_give_with_it(tmp_path: Path, lone: str) -> None:
    path = tmp_path / "file"
    if lone == "aiperf":
        path.write_text(aiperf(ROWS[0]))
    elif lone == "ring":
        write_ring(path, ROWS[:5])
    elif lone == "foreign":
        write_otlp(path, [[one | {"scopeSpans": [{"spans": [{"name": "GET", "startTimeUnixNano": "1795961457254000000",
                   "endTimeUnixNano": "1795961457255000000"}]}]} for one in spans(ROWS[0])]])  # fmt: skip
    else:
        write_otlp(path, [spans(one, decode=False, transfers=False) for one in ROWS])
    with pytest.raises(UndeterminedError, match="give the"):
        of(path)


def test_clients_beside_a_bundle_are_joined_by_request_id(tmp_path: Path) -> None:
    client = tmp_path / "profile_export.jsonl"
    known = [one | {"id": text} for one, text in zip(ROWS, BUNDLE.requests.ids, strict=True)]
    client.write_text("\n".join(aiperf(one) for one in known[:40]))
    found = seen_by_clients(BUNDLE, read_request_files(client))
    assert len(found.requests) == 40
    assert found.requests.numbers["ttft_s"] == pytest.approx(BUNDLE.requests.numbers["ttft_s"][:40] + 0.004)
    assert found.series is BUNDLE.series
    client.write_text("\n".join(aiperf(one | {"id": "else"}) for one in known))
    with pytest.raises(UndeterminedError, match="it is not the client of"):
        seen_by_clients(BUNDLE, read_request_files(client))
    with pytest.raises(UsageError, match="only load generators"):
        seen_by_clients(BUNDLE, read_request_files(otlp(tmp_path)))


def test_the_live_window_of_an_exporter_is_read_as_it_was_saved(tmp_path: Path) -> None:
    spans_file = read_request_files(otlp(tmp_path))
    assert isinstance(spans_file[0], SpanFile)
    records = _rows(spans_file[0].pieces)
    path = tmp_path / "live.json"
    document = RecordsDocument(version="1", host="h", time="t", requests=tuple(records), transfers=(), windows=())
    path.write_text(encode(document))
    found = of(path)
    assert found.requests.numbers["ttft_s"] == pytest.approx(recorded(found, "ttft_s"), abs=2e-6)
    assert "transfer_s" in found.requests.numbers
    assert f"{len(ROWS)} requests of an exporter's live window" in found.notes[0]
    client = tmp_path / "profile_export.jsonl"
    client.write_text("\n".join(aiperf(one) for one in ROWS))
    assert of(path, client).requests.numbers["ttft_s"].mean() > found.requests.numbers["ttft_s"].mean() + 0.003
    path.write_text(encode(replace(document, requests=())))
    with pytest.raises(UndeterminedError, match="no request yet"):
        of(path)


def test_an_order_in_time_needs_one_shift_that_is_clearly_the_best() -> None:
    random = np.random.default_rng(1)
    row_s = np.cumsum(random.exponential(0.5, 200))
    tokens = random.integers(50, 4000, 200).astype(float)
    found = by_time(row_s[20:80] - 1000.0, tokens[20:80], row_s, tokens, same_clock=False)
    assert found is not None
    assert found.row.tolist() == list(range(20, 80))
    assert found.shift_s == pytest.approx(1000.0)
    assert by_time(row_s[20:80] - 1000.0, tokens[20:80], row_s, tokens, same_clock=True) is None
    regular, alike = np.arange(100.0), np.full(100, 512.0)
    assert by_time(regular[:50], alike[:50], regular, alike, same_clock=False) is None
    assert by_time(row_s[:0], tokens[:0], row_s, tokens, same_clock=True) is None


def test_an_order_by_size_needs_one_place_that_fits() -> None:
    tokens = np.array([100.0, 700, 300, 900, 100, 200, 500, 800, 300, 400])
    place = by_size(tokens[3:8] * 1024, tokens)
    assert place is not None
    assert place.tolist() == [3, 4, 5, 6, 7]
    assert by_size(np.full(5, 1024.0), np.full(10, 100.0)) is None
    assert by_size(tokens * 2.0, tokens[:5]) is None
