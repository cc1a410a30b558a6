"""The lab itself works: real verbs between its ends, faults that bite, commands that cannot wedge a machine."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lab import image, process
from tests.lab.process import CommandTimeoutError, MachineLostError
from tests.lab.topology import Wire, with_memlock

pytestmark = pytest.mark.lab


@pytest.fixture(params=["lab_node", "lab_pair"])
def wire(request: pytest.FixtureRequest) -> Wire:
    """Each test bed in turn."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Wire)
    return found


def perftest(wire: Wire, tool: str, size: int, iterations: int) -> float:
    """Return the bandwidth in MB/s, or latency in µs, that a perftest program measures from a to b."""
    line = f"{tool} -F -m 4096 -s {size} -n {iterations}"
    server = wire.b.machine.spawn(f"{line} -d {wire.b.device} -x {wire.b.gid_index()}")
    wire.b.machine.run("until ss -Hltn sport = 18515 | grep -q .; do sleep 0.1; done", 30, check=True)
    client = f"{line} -d {wire.a.device} -x {wire.a.gid_index()} {wire.b.address}"
    output = wire.a.machine.run(client, 60, check=True).stdout
    assert server.wait(30).rc == 0
    rows = [row.split() for row in output.splitlines()]
    (row,) = [row for row in rows if row[:2] == [str(size), str(iterations)]]
    return float(row[3])


def test_ports_are_active_with_the_largest_mtu(wire: Wire) -> None:
    for end in wire.ends:
        assert end.port_state() == "ACTIVE"
        assert "active_mtu:\t\t4096 (5)" in end.machine.run(["ibv_devinfo", "-d", end.device]).stdout


@pytest.mark.parametrize("tool", ["ib_write_bw", "ib_read_bw"])
def test_rdma_moves_data_as_packets(wire: Wire, tool: str) -> None:
    counter = "rcvd_pkts" if "read" in tool else "sent_pkts"
    before = wire.a.counters()[counter]
    assert perftest(wire, tool, 65536, 200) > 0.1
    assert wire.a.counters()[counter] - before >= 200 * 65536 // 4096


def test_hosts_reach_each_other_over_tcp(lab_pair: Wire) -> None:
    server = lab_pair.b.machine.spawn(
        [
            "python3",
            "-c",
            "import socket as s; l=s.create_server(('',9000)); print('up',flush=True); l.accept()[0].send(b'ok')",
        ]
    )
    server.wait_for("^up", 30)
    client = "import socket as s; print(s.create_connection(('b',9000)).recv(9))"
    assert lab_pair.a.machine.run(["python3", "-c", client]).stdout == "b'ok'\n"
    assert server.wait(10).rc == 0


@pytest.mark.parametrize("python", ["/usr/bin/python3", sys.executable])
def test_pyverbs_lists_the_devices(wire: Wire, python: str) -> None:
    program = "import pyverbs.device as d; print(sorted(x.name.decode() for x in d.get_device_list()))"
    debians = {"PYTHONPATH": "/usr/lib/python3/dist-packages"}
    result = wire.a.machine.run([python, "-c", program], environment=debians, check=True)
    devices = sorted(end.device for end in wire.ends if end.machine is wire.a.machine)
    assert result.stdout.strip() == str(devices)


def test_a_pulled_cable_is_seen_at_both_ends(wire: Wire) -> None:
    wire.set_link(False)
    try:
        assert [end.port_state() for end in wire.ends] == ["DOWN", "DOWN"]
    finally:
        wire.set_link(True)
    assert [end.port_state() for end in wire.ends] == ["ACTIVE", "ACTIVE"]
    assert perftest(wire, "ib_write_bw", 65536, 20) > 0.1


def test_loss_shows_in_the_counters(wire: Wire) -> None:
    before = [end.counters() for end in wire.ends]
    with wire.a.netem("loss 3%"):
        perftest(wire, "ib_write_bw", 65536, 100)
    after = [end.counters() for end in wire.ends]
    assert after[0]["completer_retry_err"] > before[0]["completer_retry_err"]
    assert after[1]["out_of_seq_request"] > before[1]["out_of_seq_request"]


def test_delay_slows_reads_down(wire: Wire) -> None:
    with wire.a.netem("delay 20ms"):
        assert perftest(wire, "ib_read_lat", 64, 20) > 19_000


def test_locked_memory_limit_stops_registration(lab_node: Wire) -> None:
    program = (
        "from pyverbs.device import Context; from pyverbs.pd import PD; from pyverbs.mr import MR\n"
        "pd = PD(Context(name='rxe0'))\n"
        "for size in 32768, 1048576: MR(pd, size, 1); print(size, flush=True)"
    )
    command = f"/usr/bin/python3 -c {shlex.quote(program)}"
    machine = lab_node.a.machine
    assert machine.run(command, check=True).stdout == "32768\n1048576\n"
    limited = machine.run(with_memlock(command, 65536))
    assert limited.stdout == "32768\n"
    assert "Errno: 12" in limited.stderr


def test_commands_run_at_once_and_are_told_apart(lab_node: Wire) -> None:
    machine = lab_node.a.machine
    first, second = (machine.spawn(f"echo {name}; read line; echo {name} $line >&2", stdin=True) for name in "xy")
    first.wait_for("x", 20)
    second.wait_for("y", 20)
    assert first.poll() is None
    assert machine.run("echo z").stdout == "z\n"
    second.write(b"2\n")
    first.write(b"1\n")
    assert [first.wait(20).stderr, second.wait(20).stderr] == ["x 1\n", "y 2\n"]


def test_a_command_past_its_limit_is_killed_with_all_it_started(lab_node: Wire) -> None:
    machine = lab_node.a.machine
    with pytest.raises(CommandTimeoutError) as caught:
        machine.run("trap '' TERM INT; echo begun; setsid sleep 4711 & sleep 4711", timeout_s=2)
    assert caught.value.log == "begun\n"
    assert machine.run("pgrep -f '[s]leep 4711'").stdout == ""
    assert machine.run("sleep 4712 & echo left").stdout == "left\n"
    assert machine.run("pgrep -f '[s]leep 4712'").stdout == ""


def test_exit_statuses_and_signals_come_through(lab_node: Wire) -> None:
    machine = lab_node.a.machine
    assert machine.run("exit 7").rc == 7
    assert machine.run("kill -SEGV $$").rc == -signal.SIGSEGV
    assert machine.run(["no-such-program"]).rc == 127
    sleeper = machine.spawn(["sleep", "100"])
    sleeper.kill(signal.SIGTERM)
    assert sleeper.wait(20).rc == -signal.SIGTERM


def test_files_go_in_and_out_unchanged(lab_node: Wire) -> None:
    content = os.urandom(3_000_001)
    lab_node.a.machine.put(content, "/tmp/some file")
    assert lab_node.a.machine.get("/tmp/some file") == content
    assert not Path("/tmp/some file").exists()


def test_a_crash_is_told_with_the_console_and_the_machine_comes_back(lab_pair: Wire) -> None:
    machine = lab_pair.b.machine
    with pytest.raises(
        MachineLostError, match=r"machine b: the machine is gone(?s:.*)Kernel panic .*sysrq triggered crash"
    ):
        machine.run("echo 1 > /proc/sys/kernel/sysrq; echo c > /proc/sysrq-trigger")
    machine.restart()
    assert machine.run("cat /proc/sys/kernel/hostname").stdout == "b\n"
    assert perftest(lab_pair, "ib_write_bw", 65536, 20) > 0.1


def test_a_hanging_machine_is_told(lab_pair: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_DYING_S", 1.0)
    machine = lab_pair.b.machine
    qemu = machine._qemu  # another run's machines have the same names
    assert qemu
    qemu.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(MachineLostError, match="'true' does not die: the machine hangs"):
            machine.run("true", timeout_s=1)
    finally:
        qemu.send_signal(signal.SIGCONT)
    assert machine.run("echo back").stdout == "back\n"


def test_what_the_host_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(image._PROGRAMS, "no-such-program", "some-package")
    assert image.missing_prerequisite() == (
        "the lab lacks packages: apt-get install --no-install-recommends some-package"
    )


def test_no_machine_outlives_the_program_that_booted_it(lab_image: image.Image, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from tests.lab.image import Image; from tests.lab.machine import Machine\n"
        "m = Machine('orphan', Image(*map(Path, sys.argv[1:3])), Path(sys.argv[3]))\n"
        "m.start(); print('started', flush=True); m.wait_ready(); input()"
    )
    line = [sys.executable, "-c", program, str(lab_image.kernel), str(lab_image.initramfs), str(tmp_path)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stdin=subprocess.PIPE, cwd=image.REPOSITORY) as owner:
        assert owner.stdout
        owner.stdout.readline()
        assert qemus("orphan")
        owner.kill()
    deadline = time.monotonic() + 10
    while qemus("orphan") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert qemus("orphan") == []


def qemus(name: str) -> list[str]:
    """Return the process ids of the machines of that name."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if f"kvdiag-lab-{name}\0".encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue  # it has just ended
    return found
