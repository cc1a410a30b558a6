"""Each detector against the lines that it is for; the recorded logs are those of real runs."""

import math
from pathlib import Path

import pytest

from kvdiag.checks.base import Failed, Hosts, run
from kvdiag.derive.log_lines import DETECTORS
from kvdiag.model.engine_log import EngineLog, EngineLogs, LogEvent
from kvdiag.model.snapshot import Snapshot
from kvdiag.sources.base import Context
from kvdiag.sources.engine_logs import SOURCE
from tests.trees import LOGS

Seen = tuple[str, dict[str, str], int]


def events(name: str) -> list[LogEvent]:
    files = SOURCE.read(Context(logs=(LOGS / name,))).files
    assert isinstance(files, tuple)
    (log,) = files
    assert isinstance(log, EngineLog)
    assert log.unreadable is None
    return list(log.events)


def seen(name: str) -> list[Seen]:
    return [(event.kind, event.fields, event.count) for event in events(name)]


@pytest.mark.parametrize(
    ("line", "kind", "fields"),
    [
        (
            "E1129 14:03:00.1 74572 worker_pool.cpp:294] Worker: Process failed for slice (opcode: 1, "
            "source_addr: 0x7f, "
            "length: 65536, dest_addr: 0x7e, local_nic: rdma5, peer_nic: [2001:db8::7]:16012@mlx5_bond_0, "
            "dest_rkey: 5, "
            "retry_cnt: 0, max_retry_cnt: 9): transport retry counter exceeded",
            "completion",
            {
                "reporter": "Mooncake",
                "device": "rdma5",
                "peer": "[2001:db8::7]:16012",
                "peer_device": "mlx5_bond_0",
                "status": "12",
            },
        ),
        (
            "Worker: Process failed for slice (opcode: 0, source_addr: 0x5, length: 1, dest_addr: 0x2, local_nic: "
            "ionic_3): Work Request Flushed Error",
            "completion",
            {"reporter": "Mooncake", "device": "ionic_3", "status": "5"},
        ),
        (
            "[1.5] [h:1:0] ib_mlx5_log.c:171 UCX ERROR Local protection on mlx5_0:1/IB (synd 0x4 vend 0x51 "
            "hw_synd 0/0)",
            "completion",
            {"reporter": "UCX", "device": "mlx5_0", "vendor": "0x51", "status": "4"},
        ),
        (
            "NCCL WARN NET/IB : Got completion from peer 10.2.0.5<33092> with error 12, opcode 0, len 0, vendor "
            "err 129 "
            "(Recv)",
            "completion",
            {"reporter": "NCCL", "peer": "10.2.0.5", "vendor": "129", "status": "12"},
        ),
        (
            "NCCL WARN NET/IB: Got completion from peer 10.1.1.1<4> with status=IBV_WC_RETRY_EXC_ERR(12) "
            "opcode=IBV_WC_RECV_RDMA_WITH_IMM(129) vendor_err=129 localGid ::ffff:1.1.2.2 hca mlx5_1",
            "completion",
            {"reporter": "NCCL", "peer": "10.1.1.1", "vendor": "129", "device": "mlx5_1", "status": "12"},
        ),
        ("NCCL WARN Got completion with error 12", "completion", {"reporter": "NCCL", "status": "12"}),
        ("mlx5_bond_0/1: QP 51291 error: WR flushed (0x5 0x0 0xf9)", "completion", {"status": "5"}),
        ("ionic_comp_msn:1463: cqe with error 12 for 0x4b (msn), qpid 18", "completion", {"status": "12"}),
        (" Failed status 4: wr_id 0 syndrom 0x51", "completion", {"vendor": "0x51", "status": "4"}),
        ("Context is not active: mlx5_9", "nic_not_active", {"device": "mlx5_9"}),
        ("Failed to get kvcache from prefill instance, it might be dead", "peer_declared_dead", {}),
        ("Connection refused on localhost:5557", "loopback_refused", {"port": "5557"}),
        (
            "Releasing expired KV blocks for request r which were retrieved by 2 decode worker(s) within 480 seconds.",
            "kv_expired",
            {"retrieved": "2", "lease_s": "480"},
        ),
        (
            "E1 rdma.cpp:1] Failed to register memory 0x7f3280000000: Cannot allocate memory [12]",
            "registration_failed",
            {"reporter": "Mooncake", "errno": "12"},
        ),
        (
            "[1.5] [h:1:0] ib_md.c:325 UCX ERROR ibv_reg_mr(address=0xab, length=26400, access=0xf) failed: Bad "
            "address",
            "registration_failed",
            {"reporter": "UCX", "errno": "14"},
        ),
        (
            "[1.5] [h:1:0] ucp_mm.c:137 UCX  ERROR failed to register address 0xab mem_type bit 0x1 length 26400 on "
            "md[4]=mlx5_0: Input/output error (md reg_mem_types 0x15)",
            "registration_failed",
            {"reporter": "UCX", "device": "mlx5_0", "errno": "5"},
        ),
        (
            "[1.5] [h:1:0] ib_iface.c:1 UCX  ERROR mlx5_0: failed to create UD QP TX wr:256 sge:6 inl:64 resp:0 RX "
            "wr:4096 sge:1 resp:0: Cannot allocate memory",
            "queue_failed",
            {"object": "UD QP", "errno": "12"},
        ),
        ("Failed to modify QP to INIT", "queue_modify_failed", {"state": "INIT"}),
        (
            "Handshake request rejected by peer endpoint: Failed to modify QP to RTR, check mtu, gid, peer lid, "
            "peer qp "
            "num: Invalid argument [22]",
            "queue_modify_failed",
            {"state": "RTR", "errno": "22"},
        ),
        ("INFO [core.py:133] Initializing a V1 LLM engine (v0.32.0) with", "version", {"name": "vllm"}),
        ("I1129 ucx_plugin.cpp:51] NIXL UCX backend bound to UCX 1.23.0 at /x", "version", {"version": "1.23.0"}),
    ],
)
def test_a_line_of_public_reports_is_read(line: str, kind: str, fields: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(f"before\n{line}\nafter\n")
    files = SOURCE.read(Context(logs=(log,))).files
    assert isinstance(files, tuple)
    (event,) = [event for event in files[0].events if event.kind == kind]
    assert fields.items() <= event.fields.items()
    assert event.place == "line 2"


@pytest.mark.parametrize(
    "line",
    [
        "[1.5] [h:1:0] rcache.c:873 UCX  DEBUG failed to register region 0x14 [0x7f..0x80]: Input/output error",
        "[1.5] [h:1:0] ucp_mm.c:149 UCX  DIAG  failed to register address 0x7f on md[4]=mlx5_0: Input/output error",
        "INFO: a session is not alive",
        "WARNING feature is not active",
        "{'prompt': 'please explain: QP 12 error: sad (0x1 0x2 0x3)'}",
        "Got completion from peer x with status=0 opcode=1",
        "Process failed for slice of pizza",
    ],
)
def test_a_line_that_only_resembles_one_is_no_event(line: str, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(line + "\n")
    files = SOURCE.read(Context(logs=(log,))).files
    assert isinstance(files, tuple)
    assert files[0].events == ()


def test_numbers_that_no_engine_writes_stay_finite(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    huge = "9" * 400
    log.write_text(
        f"KV Transfer metrics: Num successful transfers=5, Avg MB per transfer={huge}, Avg number of descriptors=1.2\n"
        f"Got completion from peer a<1> with status=12 opcode=1 len=1 vendor err 0129 (Recv) hca mlx5_0\n"
    )
    files = SOURCE.read(Context(logs=(log,))).files
    assert isinstance(files, tuple)
    assert all(math.isfinite(number) for event in files[0].events for number in event.numbers.values())
    snapshot = Snapshot(host="h", time_s=0.0, parts={EngineLogs: EngineLogs(files=files)})
    for judged in run(Hosts(local=snapshot)):
        if isinstance(judged.outcome, Failed):
            assert not any("could not be run" in finding.summary for finding in judged.outcome.findings)


def test_recorded_vllm_decode_log_gives_its_statistics_and_nothing_else() -> None:
    (event,) = events("vllm-decode-healthy.log")
    assert event.kind == "kv_statistics"
    assert event.count == 37
    assert event.numbers["transfers"] == 507
    assert event.numbers["bytes"] == pytest.approx(5.19e9, rel=0.01)
    assert event.numbers["failed"] == event.numbers["expired"] == 0


def test_recorded_vllm_logs_of_a_killed_prefill_and_of_a_link_that_was_down() -> None:
    killed = seen("vllm-decode-prefill-killed.log")
    assert ("kv_transfer_failed", {"type": "transfer_exception", "peer": "10.99.3.1"}, 4) in killed
    assert ("nixl_status", {"status": "NIXL_ERR_REMOTE_DISCONNECT"}, 4) in killed
    assert ("kv_load_failed", {"policy": "fail"}, 1) in killed
    down = seen("vllm-prefill-expired.log")
    assert [(kind, count) for kind, _, count in down[:2]] == [("kv_expired", 4), ("kv_read_after_expiry", 4)]


def test_recorded_mooncake_log_over_tcp() -> None:
    assert [(kind, fields) for kind, fields, _ in seen("mooncake-tcp.log")] == [
        ("protocol", {"protocol": "tcp"}),
        ("rpc_listening", {"host": "127.0.0.1", "port": "15385"}),
        ("no_rdma_device", {}),
        ("tcp_installed", {}),
    ]


def test_recorded_ucx_lanes_without_the_worker_that_chose_them() -> None:
    lanes = [event.fields for event in events("ucx-tcp-lanes-asked-for.log") if event.kind == "ucx_lanes"]
    assert {"where": "inter-node", "lanes": "rma_am(tcp/nlv0)  amo_am(tcp/nlv0)  am(tcp/nlv0)  ka(tcp/nlv0)"} in lanes
    assert ("ucx_settings", {"UCX_TLS": "tcp"}, 1) in seen("ucx-tcp-lanes-asked-for.log")


def test_every_kind_that_a_detector_has_stands_in_a_checked_in_log_or_above() -> None:
    kinds = {event.kind for path in LOGS.glob("*.log") for event in events(path.name)}
    only_above = {"loopback_refused"}
    assert {detector.kind for detector in DETECTORS} - kinds == only_above
