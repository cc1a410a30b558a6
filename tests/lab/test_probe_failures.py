"""Every failure ends in one line with its cause, in bounded time, and leaves no RDMA object behind at either end."""

import json
from collections.abc import Callable, Iterator

import pytest

from tests.lab import probing
from tests.lab.probing import Bench
from tests.lab.process import Result

pytestmark = pytest.mark.lab

_LONG = "bandwidth --size 64KiB --duration 100 --timeout 8"
_SHORT = "bandwidth --size 4KiB --iterations 64"


@pytest.fixture
def bench(lab_bench: Bench) -> Iterator[Bench]:
    """Whatever a test does, each machine ends with the RDMA objects that it began with."""
    lab_bench.agent()
    before = [probing.objects(end.machine) for end in lab_bench.wire.ends]
    yield lab_bench
    if lab_bench.under_way:
        lab_bench.kill_prober()  # the test failed: its probe must not be the next one's
    for end, wanted in zip(lab_bench.wire.ends, before, strict=True):
        probing.await_objects(end.machine, wanted)


def disturb(bench: Bench, disturbance: Callable[[], None]) -> Result:
    """Return how a long probe ends that is disturbed once its transfer is under way.

    The disturbance may hit a transfer, or the verification between two of them.
    """
    bench.start(_LONG)
    probing.await_traffic(bench.wire.a, 500)
    disturbance()
    return bench.finish()


@pytest.mark.parametrize(
    ("inject", "operation", "status", "words"),
    [
        ("wrong-rkey", "write", "REM_ACCESS_ERR (10)", "remote key is wrong"),
        ("wrong-rkey", "read", "REM_ACCESS_ERR (10)", "remote key is wrong"),
        ("out-of-range", "write", "REM_ACCESS_ERR (10)", "address range leaves"),
        ("no-permission", "write", "REM_ACCESS_ERR (10)", "lacks the right"),
        ("no-permission", "read", "REM_ACCESS_ERR (10)", "lacks the right"),
        ("wrong-lkey", "write", "LOC_QP_OP_ERR (2)", "the local key is wrong"),
        ("local-out-of-range", "write", "LOC_PROT_ERR (4)", "the local buffer leaves its registration"),
        ("no-receive", "write-imm", "RNR_RETRY_EXC_ERR (13)", "no receive posted"),
        ("mtu-mismatch", "write", "REM_INV_REQ_ERR (9)", "path MTU of both ends"),
    ],
)
def test_a_refusal_has_its_own_status_and_says_what_was_seen(
    bench: Bench, inject: str, operation: str, status: str, words: str
) -> None:
    line = probing.one_line(bench.run(f"{_SHORT} --op {operation} --inject {inject}"), 69)
    assert f"failed with {status}: " in line and words in line
    assert "; seen: port rxe0/1 is ACTIVE, GID " in line and "1 of 1 queue pairs in ERR" in line
    assert ("retry_rnr_exceeded_err +1" in line) == (inject == "no-receive")


def test_a_gid_of_nobody_is_named(bench: Bench) -> None:
    line = probing.one_line(bench.run(f"{_SHORT} --inject bad-gid"), 69)
    assert "no route to the peer's GID ::ffff:10.255.255.254" in line


def test_too_many_queue_pairs_are_refused_with_the_count_and_freed(bench: Bench) -> None:
    machine = bench.wire.a.machine
    bench.run(_SHORT)
    # The lab keeps each command in a control group of its own: that one is bounded, as a container's is.
    group = "/sys/fs/cgroup$(cut -d: -f3 /proc/$(pgrep -of 'python.*benchmarks.repeat_probe')/cgroup)"
    machine.run("echo +rdma > /sys/fs/cgroup/cgroup.subtree_control", check=True)
    machine.run(f"echo 'rxe0 hca_object=24' > {group}/rdma.max", check=True)
    try:
        line = probing.one_line(bench.run(f"{_SHORT} --qps 64"), 3)
        assert "of 64 queue pairs could be made" in line and "rdma.max" in line
        assert bench.run(f"{_SHORT} --qps 8").rc == 0
    finally:
        machine.run(f"echo 'rxe0 hca_object=max' > {group}/rdma.max", check=True)


def test_a_small_memlock_limit_is_named_with_the_bytes_needed(bench: Bench) -> None:
    arguments = "bandwidth --size 1MiB --queue-depth 4 --iterations 4"
    assert bench.run(f"{arguments} --format json").rc == 0
    with bench.memlock(bench.wire.a, 65536):
        line = probing.one_line(bench.run(arguments), 3)
        assert "cannot register 4194304 bytes" in line and "memlock limit is 65536 bytes" in line
    with bench.memlock(bench.wire.b, 65536):
        line = probing.one_line(bench.run(arguments), 3)
        assert "at the agent" in line and "memlock limit is 65536 bytes" in line


def test_a_wrong_token_is_refused(bench: Bench) -> None:
    bench.wire.a.machine.put(b"a-guess-that-is-long-enough", "/tmp/wrong-token")
    wrong = bench.run(f"{_SHORT} --token-file /tmp/wrong-token")
    assert "the token is wrong or missing" in probing.one_line(wrong, 69)


@pytest.mark.parametrize(("loss", "size", "messages"), [(1, 65536, 100), (10, 16384, 60)])
def test_loss_is_recovered_and_each_end_counts_its_part(bench: Bench, loss: int, size: int, messages: int) -> None:
    """At 10 % one message of 16 packets in 230 has seven losses (negative binomial), and then the retries run out."""
    before = [end.counters() for end in bench.wire.ends]
    with bench.wire.a.netem(f"loss {loss}%"):
        document = probing.document(bench.run(f"bandwidth --size {size} --iterations {messages} --format json"))
    ours, theirs = (
        {name: now - old[name] for name, now in end.counters().items()}
        for end, old in zip(bench.wire.ends, before, strict=True)
    )
    assert document["results"][0]["verified_bytes"] == messages * size
    (errors,) = document["port_errors"]
    assert errors["port"] == "rxe0/1"
    assert errors["grown"] == {name: ours[name] for name in errors["grown"]}
    assert errors["grown"].keys() & {"completer_retry_err", "rcvd_seq_err"}
    assert theirs["out_of_seq_request"] > 0
    # What was lost was sent again: more packets than the payload has.
    assert ours["sent_pkts"] > document["proof"]["payload_bytes"] // 4096


def test_a_delay_is_all_latency_and_loses_nothing(bench: Bench) -> None:
    with bench.wire.a.netem("delay 20ms"):
        result = bench.run("latency --size 64 --iterations 20 --warmup 2 --max-p99-us 15000 --format json")
    assert result.rc == 2
    document = json.loads(result.stdout)
    (row,) = document["results"]
    assert row["latency_s"]["minimum"] >= 0.02 and row["verified_bytes"] == 20 * 64
    assert [bound["met"] for bound in document["thresholds"]] == [False]
    assert not document["port_errors"][0]["grown"].keys() & {"rcvd_seq_err", "retry_exceeded_err"}


def test_a_rate_limit_is_a_missed_threshold_and_loses_nothing(bench: Bench) -> None:
    arguments = "bandwidth --size 16KiB --queue-depth 2 --iterations 20 --warmup 0 --format json"
    free = probing.document(bench.run(arguments))
    with bench.wire.a.netem("rate 8mbit"):
        result = bench.run(f"{arguments} --min-bandwidth 8.5Mb/s")
    assert result.rc == 2
    document = json.loads(result.stdout)
    (row,) = document["results"]
    assert row["bytes_per_second"] <= 1.05e6 < free["results"][0]["bytes_per_second"]
    assert row["verified_bytes"] == 20 * 16384
    assert not document["port_errors"][0]["grown"].keys() & {"rcvd_seq_err", "retry_exceeded_err"}


def test_a_stopped_agent_is_told_apart_from_one_that_is_gone(bench: Bench) -> None:
    """Its kernel goes on taking connections, and RDMA goes on without it: what fails is the next question."""
    bench.start("bandwidth --size 64KiB --queue-depth 4 --duration 100 --timeout 15")
    probing.await_traffic(bench.wire.a, 20)
    with bench.stopped_agent():
        line = probing.one_line(bench.finish(), 69)
    assert "its host takes connections but the agent does not answer: it is stopped" in line


def test_a_link_flap_is_counted_whether_or_not_the_retries_outlast_it(bench: Bench) -> None:
    bench.start("bandwidth --size 64KiB --queue-depth 4 --duration 2 --timeout 8 --format json")
    probing.await_traffic(bench.wire.a, 100)
    bench.wire.set_link(False)
    bench.wire.set_link(True)
    result = bench.finish()
    if result.rc == 0:
        assert probing.document(result)["port_errors"][0]["grown"]["link_downed"] == 1
    else:
        line = probing.one_line(result, 69)
        # Rarely a message is cut in the middle, and rdma_rxe takes its retransmission for an invalid request.
        assert "RETRY_EXC_ERR (12)" in line or "REM_INV_REQ_ERR (9): (1) packets were lost" in line, line
        assert "link_downed +1" in line


def test_total_loss_is_named(bench: Bench) -> None:
    bench.start(_LONG)
    probing.await_traffic(bench.wire.a, 500)
    with bench.wire.a.netem("loss 100%"):
        lost = bench.finish()
    line = probing.one_line(lost, 69)
    assert "RETRY_EXC_ERR (12)" in line or "no answer within" in line


def test_a_pulled_cable_names_the_local_port(bench: Bench) -> None:
    try:
        line = probing.one_line(disturb(bench, lambda: bench.wire.set_link(False)), 69)
    finally:
        bench.wire.set_link(True)
    assert f"the local port {bench.wire.a.device}/1 is DOWN" in line


def test_a_killed_probe_leaves_nothing_at_the_agent(bench: Bench) -> None:
    before = probing.objects(bench.wire.b.machine)
    bench.start(_LONG)
    probing.await_traffic(bench.wire.a, 500)
    assert probing.objects(bench.wire.b.machine) != before
    bench.kill_prober()
    probing.await_objects(bench.wire.b.machine, before)


def test_a_killed_agent_is_told_apart_from_a_bad_path(bench: Bench) -> None:
    line = probing.one_line(disturb(bench, bench.kill_agent), 69)
    assert "the agent is gone: its control port refuses connections" in line
