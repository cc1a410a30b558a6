"""The probe's side of the control channel, against an agent that answers late."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from kvdiag.errors import UnavailableError
from kvdiag_probes.control.address import Address
from kvdiag_probes.control.client import AgentClient
from kvdiag_probes.control.credential import Credential
from kvdiag_probes.control.messages import PROTOCOL, PROTOCOL_HEADER, OpenRequest
from kvdiag_probes.datapath import Transport

BODY = b'{"session":"s","allocate_s":0.0,"register_s":0.0,"setup_s":0.0}'
ANSWER = f"HTTP/1.1 200 OK\r\n{PROTOCOL_HEADER}: {PROTOCOL}\r\ncontent-length: {len(BODY)}\r\n\r\n".encode() + BODY
LATE_S = 0.6


@pytest.fixture
def late() -> Iterator[Address]:
    """Serve late answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4096)
                    time.sleep(LATE_S)
                    try:
                        connection.sendall(ANSWER)
                    except OSError:
                        continue

        threading.Thread(target=answer, daemon=True).start()
        yield Address("127.0.0.1", listening.getsockname()[1])
        listening.shutdown(socket.SHUT_RDWR)


def test_only_what_may_take_longer_is_waited_for_longer(late: Address) -> None:
    request = OpenRequest(transport=Transport.NIXL, size=1)
    with AgentClient(late, Credential(token="t"), LATE_S / 3) as client:
        assert client.open(request, patience_s=50 * LATE_S).session == "s"
    with (
        pytest.raises(UnavailableError, match=r"no answer within 0\.2 s \(--timeout\)"),
        AgentClient(late, Credential(token="t"), LATE_S / 3) as client,
    ):
        client.open(request)
    with (
        pytest.raises(UnavailableError, match=r"no answer within 0\.3 s; is it the right host"),
        AgentClient(late, Credential(token="t"), LATE_S / 3) as client,
    ):
        client.open(request, patience_s=LATE_S / 2)
