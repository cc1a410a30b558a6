"""What was counted goes on over a reload, even what no file tells any more; what is no longer configured goes."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from kvdiag.model.record import HandleTransfer, RequestPiece
from kvdiag_exporters.app import Built, build
from kvdiag_exporters.catalog import Buckets
from kvdiag_exporters.config import Config, EngineConfig
from kvdiag_exporters.records.settings import RecordsConfig
from tests.exporters.host import NIXL, TREE
from tests.trees import write_tree

Series = Mapping[tuple[str, tuple[str, ...]], float]


def prepared(folder: Path) -> Config:
    """Write a host with one prefill engine and two decode engines, and return what watches it."""
    write_tree(TREE, folder / "root")
    shutil.copytree(NIXL / "stores/two-processes", folder / "nixl")
    engines = [EngineConfig(name="p", node="prefill-0", role="prefill", nixl_telemetry=str(folder / "nixl"))]
    for number in range(2):
        path = folder / f"d{number}.jsonl"
        path.write_text("".join(record(f"{number}-{one}", number) for one in range(3)) + "no record\n")
        engines.append(EngineConfig(name=f"d{number}", node=f"decode-{number}", role="decode", records=str(path)))
    return Config(node="host-a", root=str(folder / "root"), engines=tuple(engines), records=RecordsConfig())


def record(request_id: str, number: int) -> str:
    pair = {"prefill_node": "prefill-0", "decode_node": f"decode-{number}", "direction": "pull"}
    return json.dumps({"request_id": request_id, "arrival_s": 1.7e9, "ttft_s": 0.5, "wire_s": 0.2, **pair}) + "\n"


def served(built: Built) -> Series:
    """Return the counters and histograms of one collection: values, and the counts of histograms."""
    samples = built[1].collect(fresh=True).samples
    return {
        (one.metric.name, one.labels): float(sum(one.value.counts)) if isinstance(one.value, Buckets) else one.value
        for one in samples
        if one.metric.kind in ("counter", "histogram") and "exporter_cpu" not in one.metric.name
    }


def without(config: Config, name: str) -> Config:
    fields = {field: getattr(config, field) for field in config.__struct_fields__}
    return Config(**fields | {"engines": tuple(one for one in config.engines if one.name != name)})


def test_a_reload_keeps_what_was_counted_and_what_is_waited_for(tmp_path: Path) -> None:
    config = prepared(tmp_path)
    first = build(config)
    hub = first[0].records.hub if first[0].records is not None else None
    assert hub is not None
    handle = HandleTransfer(source="test", node="decode-0", direction="pull", duration_s=0.1, keys=(("id", "w"),))
    hub.take([handle, RequestPiece(source="test", keys=(("id", "w"),), side="prefill", node="prefill-0")])
    before = served(first)
    assert before["kvdiag_ttft_seconds", ("prefill-0", "decode-1", "pull")] == 3
    assert before["kvdiag_records_dropped_total", ("invalid",)] == 2
    assert before["kvdiag_handle_transfer_seconds", ("decode-0", "pull", "")] == 1
    assert any(value > 0 for (name, _), value in before.items() if name.startswith("kvdiag_nixl_"))

    (tmp_path / "d0.jsonl").unlink()  # no second reading could tell again what it held
    for path in (tmp_path / "nixl").iterdir():
        path.unlink()
    records = first[0].records
    assert records is not None
    records.stop(goes_on=True)
    first[1].close()
    second = build(config, before=first)
    after = served(second)
    assert {key: value for key, value in before.items() if after.get(key, -1.0) < value} == {}
    assert after["kvdiag_records_read_total", ()] == before["kvdiag_records_read_total", ()] == 6
    again = second[0].records
    assert again is not None
    assert again.hub.joiner.open == 1
    found = again.window.columns(0.0)
    assert found is not None
    assert found[1] == 6

    (tmp_path / "d0.jsonl").write_text(record("0-0", 0) + record("0-9", 0))
    second[0].stream.poll()
    grown = served(second)
    assert grown["kvdiag_ttft_seconds", ("prefill-0", "decode-0", "pull")] == 4
    assert grown["kvdiag_records_dropped_total", ("duplicate",)] == 1
    second[1].close()


def test_only_what_is_no_longer_configured_goes(tmp_path: Path) -> None:
    config = prepared(tmp_path)
    first = build(config)
    before = served(first)
    first[1].close()
    held = len(list(Path("/proc/self/fd").iterdir()))
    second = build(without(config, "d1"), before=first)
    second[0].stream.settle()
    after = served(second)
    gone = {key for key in before if "decode-1" in key[1] or "d1" in key[1]}
    assert {"kvdiag_ttft_seconds", "kvdiag_transfer_stage_seconds"} <= {name for name, _ in gone}
    assert not gone & after.keys()
    assert {key for key, value in before.items() if key not in gone and after.get(key, -1.0) < value} == set()
    assert len(list(Path("/proc/self/fd").iterdir())) < held  # the file that nobody follows any more is closed
    second[1].close()
    third = build(config, before=second)
    assert served(third)["kvdiag_records_dropped_total", ("invalid",)] >= 2
    third[1].close()
