import socket
import threading
import time
from collections.abc import Iterator

import pytest

from kvdiag.errors import UnavailableError, UsageError
from kvdiag_probes.tcp import TcpInitiator, TcpTarget


@pytest.fixture
def exposed() -> bytearray:
    return bytearray(range(256)) * 1024


@pytest.fixture
def target(exposed: bytearray) -> Iterator[TcpTarget]:
    with TcpTarget(exposed, "127.0.0.1", key=b"secret", idle_timeout_s=10) as served:
        yield served


def connect(target: TcpTarget, key: bytes = b"secret", timeout_s: float = 5) -> TcpInitiator:
    return TcpInitiator.connect(target.host, target.port, timeout_s, key=key)


def test_write_scatters_every_block_and_nothing_else(target: TcpTarget, exposed: bytearray) -> None:
    before = bytes(exposed)
    local = memoryview(bytearray(b"abcdefgh" * 1000))
    with connect(target) as initiator:
        initiator.write([(0, 10, 4), (4, 100, 3), (0, 4096, 8000)], local)
    assert exposed[10:14] == b"abcd" and exposed[100:103] == b"efg"
    assert exposed[4096 : 4096 + 8000] == bytes(local)
    untouched = [*range(10), *range(14, 100), *range(103, 4096), *range(12096, len(before))]
    assert all(exposed[i] == before[i] for i in untouched)


def test_read_gathers_blocks_also_more_than_one_system_call_takes(target: TcpTarget, exposed: bytearray) -> None:
    local = memoryview(bytearray(3000 * 16))
    blocks = [(i * 16, (2999 - i) * 16, 16) for i in range(3000)]
    with connect(target) as initiator:
        initiator.read(blocks, local)
    assert bytes(local) == b"".join(bytes(exposed[r : r + 16]) for _, r, _ in blocks)


def test_posted_operations_complete_in_order(target: TcpTarget, exposed: bytearray) -> None:
    local = memoryview(bytearray(64))
    with connect(target) as initiator:
        for i in range(8):
            initiator.post_read([(i * 8, i * 8, 8)], local)
        for _ in range(8):
            initiator.wait()
    assert local == exposed[:64]


@pytest.mark.parametrize("op", ["write", "read"])
def test_the_target_refuses_a_block_past_its_buffer(target: TcpTarget, exposed: bytearray, op: str) -> None:
    before = bytes(exposed)
    size = 200_000
    local = memoryview(bytearray(size))
    with connect(target) as initiator, pytest.raises(UnavailableError, match="outside its registered buffer"):
        getattr(initiator, op)([(0, len(exposed) - size + 1, size)], local)
    assert exposed == before


def test_the_initiator_refuses_a_block_past_its_own_buffer(target: TcpTarget) -> None:
    with connect(target) as initiator, pytest.raises(UsageError, match="local buffer of 8 bytes"):
        initiator.write([(4, 0, 5)], memoryview(bytearray(8)))


def test_a_wrong_key_is_refused(target: TcpTarget) -> None:
    with pytest.raises(UnavailableError, match="session key is wrong"):
        connect(target, key=b"guess")


def test_a_closed_port_is_named_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(UnavailableError, match=f"127.0.0.1:{port}: Connection refused"):
        TcpInitiator.connect("127.0.0.1", port, 2)


def test_a_silent_target_ends_in_a_bounded_time() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(UnavailableError, match="no welcome from the target"),
    ):
        TcpInitiator.connect("127.0.0.1", listener.getsockname()[1], 0.2)


def test_a_target_that_dies_mid_transfer_is_reported(exposed: bytearray) -> None:
    target = TcpTarget(exposed, "127.0.0.1")
    initiator = TcpInitiator.connect(target.host, target.port, 5)
    killer = threading.Timer(0.05, target.close)
    killer.start()
    local = memoryview(bytearray(65536))

    def write_for_ever() -> None:
        while True:
            initiator.write([(0, 0, 65536)], local)

    with pytest.raises(UnavailableError, match="the transfer broke off"):
        write_for_ever()
    killer.join()
    initiator.close()


def test_a_connection_that_sends_nothing_is_cut(exposed: bytearray) -> None:
    with (
        TcpTarget(exposed, "127.0.0.1", idle_timeout_s=0.1) as target,
        socket.create_connection((target.host, target.port), timeout=5) as idle,
    ):
        assert idle.recv(1) == b""


def test_a_peer_may_rest_between_two_requests(exposed: bytearray) -> None:
    """As a probe does that keeps to a budget."""
    with TcpTarget(exposed, "127.0.0.1", key=b"secret", idle_timeout_s=0.1) as target:
        initiator = TcpInitiator.connect(target.host, target.port, 5.0, key=b"secret")
        for _ in range(2):
            initiator.write([(0, 0, 64)], memoryview(b"x" * 64))
            time.sleep(0.3)
        initiator.close()
    assert exposed[:64] == b"x" * 64
