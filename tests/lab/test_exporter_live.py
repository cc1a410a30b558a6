"""The exporter beside programs that register, connect and transfer on a real kernel: every figure against the truth."""

import json
import statistics
import sys
import time
from collections.abc import Iterator

import pytest

from tests.lab.exporting import LabExporter, Scrape
from tests.lab.machine import Machine
from tests.lab.process import Process
from tests.lab.rdma_program import objects_by_process
from tests.lab.topology import Wire

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

REGIONS, ROUNDS, SIZE = 30, 6, 16 << 20
TRACING = "/sys/kernel/tracing"
FOREIGN = "p:kprobes/somebody vfs_fsync"
LEFT_BY_A_KILLED_ONE = r"""
cd /sys/kernel/tracing
session=kvdiag_1_abcdef event=kvdiag_1_abcdef__pin_0
mkdir instances/$session
echo "r:$session/${event}_out ib_umem_get ret=\$retval:u64" >> kprobe_events
echo "p:$session/${event}_in ib_umem_get" >> kprobe_events
echo "$event int pid; u64 ns" >> synthetic_events
cd instances/$session/events
echo 'hist:keys=pid,ns.log2:vals=ns' >> synthetic/$event/trigger
echo "hist:keys=common_pid:t=common_timestamp" >> $session/${event}_in/trigger
echo "hist:keys=common_pid:d=common_timestamp-\$t:onmatch($session.${event}_in).$event(common_pid,\$d)" \
    >> $session/${event}_out/trigger
"""
TRANSFERS = 8
NIXL = "/tmp/live-nixl"
# NIXL's wheel brings a libibverbs of its own, which cannot load Debian's driver of soft-RoCE.
ENVIRONMENT = {"LD_PRELOAD": "/usr/lib/x86_64-linux-gnu/libibverbs.so.1"}


@pytest.fixture(scope="module")
def exporter(lab_pair: Wire) -> Iterator[LabExporter]:
    """Run an exporter on machine a."""
    running = LabExporter(lab_pair.a.machine)
    yield running
    running.kill()


def traced(machine: Machine) -> str:
    """Return everything that is set for tracing."""
    line = f"cd {TRACING}; cat kprobe_events synthetic_events; ls instances; cat instances/*/events/*/*/trigger"
    return machine.run(line).stdout


def median_bucket(scrape: Scrape, call: str) -> tuple[float, float]:
    """Return the bounds of the bucket that the median lies in, in seconds."""
    rows = scrape.rows("kvdiag_rdma_call_seconds_bucket", "le", call=call, engine="demo")
    buckets = sorted((float(end), count) for (end,), count in rows.items())
    place = next(i for i, (_, count) in enumerate(buckets) if count >= buckets[-1][1] / 2)
    return (buckets[place - 1][0] if place else 0.0), buckets[place][0]


def test_calls_in_the_kernel_are_counted_and_timed_and_nothing_stays(lab_pair: Wire, exporter: LabExporter) -> None:
    end = lab_pair.a
    machine = end.machine
    line = f"echo $$; exec {sys.executable} -m tests.lab.registering {end.device} {end.gid_index()}"
    program = machine.spawn(line, stdin=True)
    pid = program.wait_for(r"^(\d+)$", 60)[1]
    machine.run(f"echo '{FOREIGN}' >> {TRACING}/kprobe_events", check=True)
    machine.run(f"set -e; {LEFT_BY_A_KILLED_ONE}", check=True)
    left = traced(machine)
    exporter.configure(f'kernel_timing = true\n[[engines]]\nname = "demo"\npid = {pid}\n')
    program.wait_for("^ready", 60)
    exporter.await_scrape(lambda one: one.sum("kvdiag_rdma_call_timed", call="modify_qp") == 1, "timed")
    program.write(f"{REGIONS} {ROUNDS}\n".encode())
    took_s = json.loads(program.wait_for(r"^(\{.*\})$", 60)[1])
    found = exporter.await_scrape(lambda one: counted(one, "modify_qp_rts") == 2 * ROUNDS, "counted")
    program.kill()
    exporter.configure("")
    now = traced(machine)
    machine.run(f"echo '-:kprobes/somebody' >> {TRACING}/kprobe_events", check=True)

    assert "onmatch(kvdiag_1_abcdef.kvdiag_1_abcdef__pin_0_in)" in left
    assert now.strip().splitlines() == [FOREIGN]
    counts = {name: len(seconds) for name, seconds in took_s.items()}
    assert counts == {
        "reg_mr": REGIONS, "dereg_mr": REGIONS, "create_qp": 2 * ROUNDS, "modify_qp_init": 2 * ROUNDS,
        "modify_qp_rtr": 2 * ROUNDS, "modify_qp_rts": 2 * ROUNDS,
    }  # fmt: skip
    assert {name: counted(found, name) for name in counts} == counts
    assert counted(found, "pin") == REGIONS
    assert found.sum("kvdiag_rdma_pinned_bytes_total", engine="demo") == REGIONS * SIZE
    failures = found.rows("kvdiag_rdma_call_failures_total", "error", engine="demo", call="reg_mr")
    assert failures == {("EFAULT",): 1, ("EINVAL",): 1}
    assert found.sum("kvdiag_rdma_calls_unmeasured_total") == 0
    sums_s = {name: found.sum("kvdiag_rdma_call_seconds_sum", call=name, engine="demo") or 0.0 for name in counts}
    assert all(0 < sums_s[name] < sum(took_s[name]) for name in counts), sums_s
    # The program sees the call itself and its way there and back: the same power of two, or the one below.
    for name in ("reg_mr", "dereg_mr"):
        measured_s, (low_s, high_s) = statistics.median(took_s[name]), median_bucket(found, name)
        assert low_s < measured_s < 4 * high_s, name


def counted(scrape: Scrape, call: str) -> float | None:
    return scrape.sum("kvdiag_rdma_call_seconds_count", call=call, engine="demo")


def test_nixl_over_rdma_and_then_over_tcp_is_told_apart_and_nothing_is_lost(
    lab_pair: Wire, exporter: LabExporter
) -> None:
    near, far = lab_pair.a.machine, lab_pair.b.machine
    ends = []
    for machine, role, peer in ((far, "decode", lab_pair.a), (near, "prefill", lab_pair.b)):
        machine.run(f"rm -rf {NIXL}; mkdir -p {NIXL}/telemetry", check=True)
        line = f"echo $$; exec {sys.executable} -m tests.lab.nixl_end {role} {peer.address} {NIXL}"
        ends.append(machine.spawn(line, stdin=True, environment=ENVIRONMENT))
    pid = ends[1].wait_for(r"^(\d+)$", 60)[1]
    config = f'''[[engines]]
name = "demo"
role = "prefill"
pid = {pid}
nixl_telemetry = "{NIXL}/telemetry"
records = "{NIXL}/requests.jsonl"
[recorder]
path = "{NIXL}/bundle"
'''
    tell(ends, f"rc {lab_pair.a.device}:1 {TRANSFERS}", "ready", 1)
    exporter.configure(config)
    over_rdma = transferred(exporter, ends, 1)
    said = objects_by_process(near)
    tell(ends, "on", None, 0)
    tell(ends, f"tcp {lab_pair.a.netdev} {TRANSFERS}", "ready", 2)
    exporter.configure(config)
    over_tcp = transferred(exporter, ends, 2)
    health = exporter.health()
    ended = exporter.stop()
    recorded = [json.loads(line) for line in near.get(f"{NIXL}/bundle/requests.jsonl").splitlines()]
    for one in ends:
        one.kill()

    assert ended.rc == 0, ended.stderr
    assert said.queue_pairs[int(pid)] >= 1
    assert said.region_bytes[int(pid)] >= 4 << 20
    engine = {"engine": "demo", "device": lab_pair.a.device}
    assert over_rdma.sum("kvdiag_rdma_queue_pairs", **engine) == said.queue_pairs[int(pid)]
    assert over_rdma.sum("kvdiag_rdma_engine_objects", kind="mr", **engine) == said.regions[int(pid)]
    assert over_rdma.sum("kvdiag_rdma_memory_region_bytes", **engine) == said.region_bytes[int(pid)]
    moved = 8 * 65536
    for scrape, rounds in ((over_rdma, 1), (over_tcp, 2)):
        transfers = rounds * (1 + TRANSFERS)
        assert scrape.sum("kvdiag_nixl_transmit_bytes_total") == transfers * moved
        assert scrape.sum("kvdiag_nixl_registered_bytes_total") == rounds * (4 << 20)
    assert over_rdma.sum("kvdiag_records_read_total") == 1 + TRANSFERS
    assert over_rdma.sum("kvdiag_transfer_size_bytes_sum") == (1 + TRANSFERS) * moved
    assert (len(recorded), sum(one["bytes"] for one in recorded)) == (2 * (1 + TRANSFERS), 2 * (1 + TRANSFERS) * moved)
    assert len({one["request_id"] for one in recorded}) == len(recorded)
    assert carriers(over_rdma) == {("rdma",)}, over_rdma.rows("kvdiag_transfer_window_bytes", "counted_by")
    assert over_rdma.sum("kvdiag_finding", code="EXP005") is None
    assert carriers(over_tcp) == {("tcp",)}, over_tcp.rows("kvdiag_transfer_window_bytes", "counted_by")
    assert over_tcp.sum("kvdiag_finding", code="EXP005") == 1
    (finding,) = (one for one in health["findings"] if one["code"] == "EXP005")
    assert "KV bytes go over TCP though RDMA ports are up" in finding["summary"]


def tell(ends: list[Process], line: str, state: str | None, times: int) -> None:
    """Give both ends a line, and wait until both have told a state so many times."""
    for one in ends:
        one.write(f"{line}\n".encode())
    for one in ends if state else ():
        one.wait_for(rf'(?s)\A(?:.*?"state": "{state}"){{{times}}}', 240)


def transferred(exporter: LabExporter, ends: list[Process], rounds: int) -> Scrape:
    """Have the transfers of one round made between two scrapes, far enough apart for a verdict; return the second."""
    before = rounds + (rounds - 1) * TRANSFERS
    exporter.await_scrape(lambda one: one.sum("kvdiag_nixl_write_transfers_total") == before, "the first transfer")
    start_s = time.monotonic()
    tell(ends, "on", "done", rounds)
    time.sleep(max(0.0, start_s + 6 - time.monotonic()))
    return exporter.await_scrape(
        lambda one: one.sum("kvdiag_nixl_write_transfers_total") == before + TRANSFERS and bool(carriers(one)),
        "all transfers",
    )


def carriers(scrape: Scrape) -> set[tuple[str, ...]]:
    rows = scrape.rows("kvdiag_transfer_transport", "transport", direction="transmit")
    return {transport for transport, value in rows.items() if value}
