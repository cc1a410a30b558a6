"""Every name of every recorded or released version is mapped, or the map says why it is not."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from kvdiag_exporters.catalog import Buckets
from kvdiag_exporters.engines.maps import by_name, load, owner
from kvdiag_exporters.engines.metrics import BY_NAME
from kvdiag_exporters.engines.normalise import Normalised, normalise

FIXTURES = Path(__file__).parents[2] / "fixtures/engines"
NAMES = sorted((FIXTURES / "names").iterdir())
RECORDED = sorted(FIXTURES.glob("*-*.txt"))
HEAD = ("node-a", "demo", "decode")


def released(path: Path) -> dict[str, str]:
    return dict(line.split() for line in path.read_text().splitlines())


def exposition(names: dict[str, str], step: float) -> str:
    """Return an exposition of these names, every value `step` times something."""
    lines = []
    for number, (name, kind) in enumerate(names.items(), 1):
        labels = '{model_name="m",engine="0",tp_rank="0",status="ok"}'
        lines.append(f"# TYPE {name} {kind}")
        if kind == "histogram":
            lines += [f'{name}_bucket{labels[:-1]},le="{le}"}} {step * n}' for le, n in (("1.0", 1), ("+Inf", 3))]
            lines += [f"{name}_count{labels} {step * 3}", f"{name}_sum{labels} {step * number}"]
        elif kind == "summary":
            lines += [f"{name}_count{labels} {step}", f"{name}_sum{labels} {step}"]
        else:
            lines.append(f"{name}{labels} {step * number}")
    return "\n".join(lines) + "\n"


def family(name: str, kind: str) -> str:
    return name.removesuffix("_total") if kind == "counter" else name


@pytest.mark.parametrize("path", NAMES, ids=lambda path: path.stem)
def test_two_expositions_of_a_released_version_leave_no_gap(path: Path) -> None:
    names = released(path)
    before, after = (normalise(exposition(names, step), HEAD) for step in (1.0, 4.0))
    assert before.unmapped == after.unmapped == {}
    assert before.broken == after.broken == []
    wanted = {family(name, kind) for name, kind in names.items()} & by_name().keys()
    assert wanted, "nothing of this version is mapped"
    assert len(before.samples) == len(after.samples) > 0
    for one, other in zip(before.samples, after.samples, strict=True):
        assert one[:2] == other[:2]
        if isinstance(one.value, Buckets):
            assert isinstance(other.value, Buckets)
            assert other.value.counts == tuple(4 * count for count in one.value.counts)
            assert other.value.sum == pytest.approx(4 * one.value.sum)
        else:
            assert other.value == pytest.approx(4 * one.value)


def test_twenty_versions_are_held_against_the_maps() -> None:
    versions = {path.stem for path in NAMES} | {"vllm-0.32.0", "nixl-1.5.1", "mooncake-0.3.13"}
    assert len(versions) >= 20
    assert {name.split("-")[0] for name in versions} == {"vllm", "sglang", "dynamo", "lmcache", "nixl", "mooncake"}


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_expositions_leave_no_gap(path: Path) -> None:
    found = normalise(path.read_text(), HEAD)
    assert (found.unmapped, found.broken) == ({}, [])
    assert len(found.sources) == 1
    assert found.samples


def test_a_transfer_related_name_without_a_row_is_told() -> None:
    text = "# TYPE vllm:nixl_new_thing counter\nvllm:nixl_new_thing_total 3\n"
    text += "# TYPE vllm:tool_calls gauge\nvllm:tool_calls 1\n"
    assert normalise(text, HEAD).unmapped == {"vllm": {"vllm:nixl_new_thing"}}


def test_every_row_leads_to_a_metric_and_no_row_is_both_mapped_and_always_ignored() -> None:
    for one in load():
        assert one.series
        for row in one.series:
            assert row.metric in BY_NAME
            for name in row.names:
                assert owner(name) is one, name
                if row.unless is None:
                    reason = one.ignores(name)
                    assert reason is None or any("*" in pattern for pattern in one.ignored.get(reason, ("*",))), name


def test_versions_of_a_row_are_in_order() -> None:
    for one in load():
        for row in one.series:
            numbers = [tuple(int(part) for part in v.split(".")) for v in (row.since, row.until) if v]
            assert all(a <= b for a, b in pairwise(numbers)), row


def test_the_unit_in_a_name_agrees_with_the_map() -> None:
    """A name that says its unit is taken at its word: ms, us, seconds, bytes."""
    for name, (_, row, _) in by_name().items():
        unit = row.unit or {"seconds": "s", "bytes": "B"}.get(BY_NAME[row.metric].unit, "")
        if name.endswith("_ms"):
            assert unit == "ms", name
        elif re.search(r"_us$", name):
            assert unit == "us", name
        elif name.endswith("_seconds"):
            assert unit == "s", name
        elif name.endswith("_bytes"):
            assert unit == "B", name


def value(found: Normalised, name: str, **labels: str) -> float | Buckets:
    chosen = [
        one.value
        for one in found.samples
        if one.metric.name == name
        and all(one.labels[one.metric.labels.index(label)] == text for label, text in labels.items())
    ]
    assert len(chosen) == 1, (name, labels, chosen)
    return chosen[0]


def test_a_recorded_decode_engine_tells_what_it_moved() -> None:
    before, after = (
        normalise((FIXTURES / f"vllm-decode-tbf200-{when}.txt").read_text(), HEAD) for when in ("before", "after")
    )
    sizes = [value(one, "kvdiag_engine_transfer_size_bytes", kind="nixl") for one in (before, after)]
    times = [value(one, "kvdiag_engine_transfer_seconds", kind="nixl") for one in (before, after)]
    assert all(isinstance(one, Buckets) for one in (*sizes, *times))
    moved = sizes[1].sum - sizes[0].sum  # type: ignore[union-attr]
    transfers = sum(times[1].counts) - sum(times[0].counts)  # type: ignore[union-attr]
    source = (FIXTURES / "vllm-decode-tbf200-after.txt").read_text()
    text = re.search(r"^vllm:nixl_bytes_transferred_sum\{.*\} (\S+)$", source, re.M)
    assert text is not None
    assert sizes[1].sum == float(text[1])  # type: ignore[union-attr]
    assert moved > 0
    assert transfers == 40


def test_the_queue_of_a_decode_engine_holds_the_kv_wait() -> None:
    text = (FIXTURES / "vllm-prefill-push.txt").read_text()
    for role, kind in (("prefill", "queue"), ("decode", "queue_and_kv_wait"), ("both", "queue_and_kv_wait")):
        kinds = {one.labels[5] for one in normalise(text, ("n", "e", role)).samples}
        assert kind in kinds
        assert len({"queue", "queue_and_kv_wait"} & kinds) == 1


def test_nixl_ranks_are_kept_apart_and_agents_are_no_label() -> None:
    text = (FIXTURES / "nixl-mp.txt").read_text()
    found = normalise(text, HEAD)
    assert value(found, "kvdiag_engine_transfer_moved_bytes_total", rank="1", kind="write") == 83890176
    assert value(found, "kvdiag_engine_transfer_moved_bytes_total", rank="0", kind="write") == 0
    assert value(found, "kvdiag_engine_transfer_busy_seconds_total", rank="1", kind="nixl") == pytest.approx(0.906388)
    assert not any("initiator" in label for one in found.samples for label in one.labels)
