from pathlib import Path

import pytest

from kvdiag_exporters.catalog import Buckets, Sample
from kvdiag_exporters.collectors.base import Engine, Setup
from kvdiag_exporters.collectors.trtllm_csv import INVALID, TrtllmCsvCollector
from kvdiag_exporters.engines.trtllm_csv import CsvFollower

NEW = (
    "timestamp,task_type,unique_rid,peer_rank,transfer_size_bytes,avg_segment_size_bytes,transfer_entry_count,"
    "prepare_args_latency_ms,queue_latency_ms,transfer_latency_ms,task_latency_ms,throughput_mbs\n"
)
ROW = "1767225600.1,SEND,7,1,1048576,65536,16,0.5,2.0,40.0,42.5,25.0\n"


def test_the_python_transceivers_rows(tmp_path: Path) -> None:
    path = tmp_path / "perf_ctx0_3.csv"
    path.write_text(NEW + ROW + ROW[:20])
    follower = CsvFollower(path)
    (one,) = follower.read()
    assert (one.rank, one.kind, one.seconds, one.bytes, one.descriptors) == ("3", "send", 0.04, 1048576, 16)
    assert (one.queue_s, one.prepare_s, one.derived_size) == (0.002, 0.0005, False)
    with path.open("a") as file:
        file.write(ROW[20:] + "broken,row\n" + ROW.replace("40.0", "nan"))
    assert len(follower.read()) == 1
    assert follower.invalid == 2
    assert follower.read() == []


@pytest.mark.parametrize(("header", "lead"), [
    ("RequestID,Delay(ms),Duration(ms),Bandwidth(Gbps)", "5"),
    ("RequestID,RequestInfo,Preparation,Preprocess,Transmissions,Postprocess,Delay,Duration,Bandwidth(Gbps)",
     "5,1,2,3,4,5"),
])  # fmt: skip
def test_the_cpp_transceivers_rows_have_as_many_measures_as_they_like(tmp_path: Path, header: str, lead: str) -> None:
    path = tmp_path / "rank_2_recv.csv"
    path.write_text(f"{header}\n{lead},1.5,10,8\n{lead},1.5,10,8,2.0,20,4\n{lead},1\n")
    follower = CsvFollower(path)
    found = follower.read()
    assert [(one.rank, one.kind, one.seconds, one.bytes) for one in found] == [
        ("2", "recv", 0.01, 1e7), ("2", "recv", 0.01, 1e7), ("2", "recv", 0.02, 1e7),
    ]  # fmt: skip
    assert all(one.derived_size for one in found)
    assert follower.invalid == 1


def test_a_file_begun_anew_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "perf_0_0.csv"
    path.write_text(NEW + ROW * 3)
    follower = CsvFollower(path)
    assert len(follower.read()) == 3
    path.write_text(NEW + ROW)
    assert len(follower.read()) == 1


def test_transfers_are_counted_by_rank(tmp_path: Path) -> None:
    engine = Engine(name="ctx", node="n", role="prefill", transfer_csv=tmp_path / "csv")
    collector = TrtllmCsvCollector(Setup(node="n", engines=(engine,)))

    def named(name: str) -> list[Sample]:
        return [one for one in collector.collect() if one.metric.name == name]

    assert named("kvdiag_engine_transfer_seconds") == []
    assert "No such file or directory" in collector.missing[0]
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv/perf_i_0.csv").write_text(NEW + ROW)
    (tmp_path / "csv/rank_1_send.csv").write_text("RequestID,Delay(ms),Duration(ms),Bandwidth(Gbps)\n1,0,50,8\nx\n")
    (tmp_path / "csv/notes.csv").write_text("a,b\n1,2\n")
    assert {one.labels[3:] for one in named("kvdiag_engine_transfer_size_bytes")} == {
        ("trtllm", "0", "send", "transfer", "measured"), ("trtllm", "1", "send", "transfer", "derived"),
    }  # fmt: skip
    assert collector.missing == ()
    (seconds, _) = named("kvdiag_engine_transfer_seconds")
    assert isinstance(seconds.value, Buckets)
    assert (sum(seconds.value.counts), seconds.value.sum) == (1, 0.04)
    assert named(INVALID.name)[0].value == 2
