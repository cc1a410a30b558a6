"""What the demo does to its link, seen by two programs at its ends; and a process that pauses."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvdiag.model.missing import Missing
from kvdiag_probes.demo import network, tether
from kvdiag_probes.demo.pauses import Pauses

PEER = Path(__file__).with_name("link_peer.py")
LINK = network.availability()
needs_link = pytest.mark.skipif(isinstance(LINK, Missing), reason=f"no network namespaces: {LINK}")
Ends = tuple[int, int]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Return two processes in namespaces of their own, joined by the demo's link: prefill's and decode's."""
    sleepers = [
        subprocess.Popen(tether.wrap(["sleep", "60"], on_parent_death=signal.SIGKILL, netns=True)) for _ in range(2)
    ]
    try:
        deadline_s = time.monotonic() + 10
        while any(Path(f"/proc/{one.pid}/exe").resolve().name != "sleep" for one in sleepers):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        network.connect(sleepers[0].pid, sleepers[1].pid)
        yield sleepers[0].pid, sleepers[1].pid
    finally:
        for one in sleepers:
            one.kill()
            one.wait()


def over_the_link(ends: Ends, pings: int = 9, size: int = 4 << 20, datagrams: int = 0) -> tuple[float, bool, int]:
    """Return the median round trip from prefill's end, whether the bytes came back, and the datagrams that arrived."""

    def at(pid: int, *arguments: str) -> "subprocess.Popen[str]":
        line = ["nsenter", f"--net=/proc/{pid}/ns/net", sys.executable, str(PEER), *arguments]
        return subprocess.Popen(line, stdout=subprocess.PIPE, text=True)

    with at(ends[1], "serve", network.DECODE_ADDRESS) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        with at(ends[0], "call", network.DECODE_ADDRESS, str(pings), str(size), str(datagrams)) as client:
            trip_s, intact = client.communicate(timeout=30)[0].split()
        arrived, _ = server.communicate(timeout=30)
    return float(trip_s), intact == "True", int(arrived)


@needs_link
@pytest.mark.component
def test_every_packet_of_a_longer_way_comes_later_and_whole(ends: Ends) -> None:
    before_s, intact, _ = over_the_link(ends)
    assert intact
    way = network.lengthen(ends[0], 0.05)
    try:
        deadline_s = time.monotonic() + 10
        while (after := over_the_link(ends))[0] < 0.05:
            assert time.monotonic() < deadline_s and way.poll() is None, after
        assert after[1]
        assert after[0] > before_s + 0.04
    finally:
        way.kill()
        way.wait()


@needs_link
@pytest.mark.component
def test_a_share_of_the_packets_is_lost_and_tcp_repairs_it(ends: Ends) -> None:
    assert over_the_link(ends, datagrams=200)[2] == 200
    network.lose(ends[1], 0.25)
    _, intact, arrived = over_the_link(ends, pings=1, size=1 << 18, datagrams=400)
    assert intact
    assert 240 <= arrived <= 360  # 300 expected; 60 is seven standard deviations


def test_a_process_pauses_at_the_begin_of_every_period_and_goes_on_in_the_end() -> None:
    with subprocess.Popen(["sleep", "30"]) as process:

        def state() -> str:
            for _ in range(100):
                if (now := Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]) == wanted:
                    break
                time.sleep(0.01)
            return now

        pauses = Pauses(process.pid, 10.0, 0.4, 1.6)
        for now_s, wanted in ((9.9, "S"), (10.1, "T"), (10.3, "T"), (10.5, "S"), (11.7, "T"), (11.9, "T"), (12.1, "S")):
            pauses.step(now_s)
            assert state() == wanted
        pauses.step(13.3)
        pauses.end()
        wanted = "S"
        assert state() == wanted
        process.kill()
        process.wait()
        pauses.step(14.9)  # gone: nothing to stop
