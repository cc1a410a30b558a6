"""Time in the kernel, measured by a real one: as many calls as were made, as long as the program saw, nothing left."""

import json
import signal
import statistics
import sys
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.lab.machine import Machine
from tests.lab.topology import Wire

pytestmark = pytest.mark.lab

REGIONS, ROUNDS, SIZE = 40, 6, 1 << 20
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


def traced(machine: Machine) -> str:
    """Return everything that is set for tracing."""
    line = f"cd {TRACING}; cat kprobe_events synthetic_events; ls instances; cat instances/*/events/*/*/trigger"
    return machine.run(line).stdout


def scraped(machine: Machine, port: str) -> dict[tuple[str, ...], float]:
    """Return what the exporter serves of calls in the kernel, without the labels node and engine."""
    ask = f"exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3"
    text = machine.run(ask, 60, check=True).stdout.partition("\r\n\r\n")[2]
    found = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            if one.name.startswith("kvdiag_rdma_call") and one.labels.get("engine", "demo") == "demo":
                labels = {key: value for key, value in one.labels.items() if key not in ("node", "engine")}
                found[one.name.removeprefix("kvdiag_rdma_"), *labels.values()] = one.value
            if one.name == "kvdiag_rdma_pinned_bytes_total" and one.labels["engine"] == "demo":
                found[("pinned",)] = one.value
    return found


def median_bucket(found: dict[tuple[str, ...], float], call: str) -> tuple[float, float]:
    """Return the bounds of the bucket that the median lies in."""
    half = found["call_seconds_count", call] / 2
    buckets = sorted((float(key[2]), count) for key, count in found.items() if key[:2] == ("call_seconds_bucket", call))
    place = next(i for i, (_, count) in enumerate(buckets) if count >= half)
    return (buckets[place - 1][0] if place else 0.0), buckets[place][0]


def test_calls_are_counted_and_timed_and_nothing_stays(lab_node: Wire) -> None:
    end = lab_node.a
    machine = end.machine
    line = f"echo $$; exec {sys.executable} -m tests.lab.registering {end.device} {end.gid_index()}"
    program = machine.spawn(line, stdin=True)
    pid = program.wait_for(r"^(\d+)$", 60)[1]
    machine.run(f"echo '{FOREIGN}' >> {TRACING}/kprobe_events", check=True)
    machine.run(f"set -e; {LEFT_BY_A_KILLED_ONE}", check=True)
    left = traced(machine)
    config = f'node = "n"\nlisten = "127.0.0.1:0"\nkernel_timing = true\n[[engines]]\nname = "demo"\npid = {pid}\n'
    machine.put(config.encode(), "/tmp/kernel-calls.toml")
    exporter = machine.spawn(f"exec {sys.executable} -m kvdiag exporter --config /tmp/kernel-calls.toml")
    port = exporter.wait_for(r"serving http://127.0.0.1:(\d+)", 90)[1]
    program.wait_for("^ready", 60)
    while ("call_timed", "modify_qp") not in scraped(machine, port):
        assert exporter.poll() is None, exporter.log()
        time.sleep(0.5)
    program.write(f"{REGIONS} {ROUNDS}\n".encode())
    took_s = json.loads(program.wait_for(r"^(\{.*\})$", 60)[1])
    found = scraped(machine, port)
    program.kill()
    exporter.kill(signal.SIGTERM)
    ended = exporter.wait(30)
    now = traced(machine)
    machine.run(f"echo '-:kprobes/somebody' >> {TRACING}/kprobe_events", check=True)

    assert "onmatch(kvdiag_1_abcdef.kvdiag_1_abcdef__pin_0_in)" in left
    assert (ended.rc, now.strip().splitlines()) == (0, ["p:kprobes/somebody vfs_fsync"]), ended.stderr
    counts = {name: len(took_s[name]) for name in took_s}
    assert counts == {
        "reg_mr": REGIONS, "dereg_mr": REGIONS, "create_qp": 2 * ROUNDS, "modify_qp_init": 2 * ROUNDS,
        "modify_qp_rtr": 2 * ROUNDS, "modify_qp_rts": 2 * ROUNDS,
    }  # fmt: skip
    assert {name: found["call_seconds_count", name] for name in counts} == counts
    assert (found["call_seconds_count", "pin"], found[("pinned",)]) == (REGIONS, REGIONS * SIZE)
    assert found["call_failures_total", "reg_mr", "EFAULT"] == found["call_failures_total", "reg_mr", "EINVAL"] == 1
    assert {value for key, value in found.items() if key[0] == "calls_unmeasured_total"} == {0}
    for name, seconds in took_s.items():
        assert 0 < found["call_seconds_sum", name] < sum(seconds), name
    assert found["call_seconds_sum", "pin"] < found["call_seconds_sum", "reg_mr"]
    # The program sees the call itself and its way there and back: the same power of two, or the one below.
    for name in ("reg_mr", "dereg_mr"):
        measured_s, (low_s, high_s) = statistics.median(took_s[name]), median_bucket(found, name)
        assert low_s < measured_s < 2 * high_s, name
