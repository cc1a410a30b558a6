"""The real server and the real client over loopback."""

import contextlib
import http.client
import json
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from kvdiag.errors import UnavailableError, UndeterminedError, UsageError
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import RdmaDevices
from kvdiag_probes import rdma_path
from kvdiag_probes.control import client as client_module
from kvdiag_probes.control import connections as connections_module
from kvdiag_probes.control import server as server_module
from kvdiag_probes.control.address import Address
from kvdiag_probes.control.client import AgentClient, LostAgentError, RefusedConnectionError, fetch_snapshot
from kvdiag_probes.control.credential import Credential
from kvdiag_probes.control.messages import PROTOCOL, FillRequest, Hello, OpenRequest, QueuePairAddress, VerifyRequest
from kvdiag_probes.control.server import AgentServer
from kvdiag_probes.control.sessions import Limits, Sessions
from kvdiag_probes.control.targets import DeviceOptions, TargetFactory, _rail
from kvdiag_probes.datapath import Transport
from tests.probes.agents import TOKEN, serving
from tests.probes.test_gid import device


@pytest.fixture(scope="module")
def agent() -> Iterator[AgentServer]:
    with serving() as server:
        yield server


@pytest.fixture
def client(agent: AgentServer) -> Iterator[AgentClient]:
    with AgentClient(agent.address, TOKEN, 5) as opened:
        yield opened


def raw(agent: AgentServer, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(agent.address.host, agent.address.port, timeout=5)
    sent = {"authorization": "Bearer let-me-in", "kvdiag-protocol": str(PROTOCOL)} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    connection.request(method, path, body, sent)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, json.loads(text)["error"] if text.startswith('{"error"') else text


def test_a_session_over_the_wire(client: AgentClient) -> None:
    assert client.hello().protocol == PROTOCOL
    answer = client.open(OpenRequest(transport=Transport.TCP, size=1000))
    assert answer.tcp_port and answer.tcp_key
    client.fill(answer.session, FillRequest(seed=1, size=1000))
    assert client.verify(answer.session, VerifyRequest(seed=1, size=1000)).mismatch is None
    assert client.verify(answer.session, VerifyRequest(seed=2, size=1000)).mismatch is not None
    client.close_session(answer.session)
    with pytest.raises(UnavailableError, match="no session"):
        client.close_session(answer.session)
    sent, received = client.moved_bytes
    assert 0 < sent < 10_000 and 0 < received < 10_000
    assert client.local_address == "127.0.0.1"


@pytest.mark.parametrize("token", [None, "a-guess", "let-me-in-too"])
def test_a_wrong_or_missing_token_is_refused_on_every_route(agent: AgentServer, token: str | None) -> None:
    with (
        AgentClient(agent.address, Credential(token=token), 5) as stranger,
        pytest.raises(UnavailableError, match="the token is wrong or missing; give its --token-file or KVDIAG_TOKEN"),
    ):
        stranger.hello()
    for method, path in (("GET", "/v1/snapshot"), ("POST", "/v1/sessions"), ("DELETE", "/v1/sessions/x"), ("GET", "/")):
        assert raw(agent, method, path, authorization="Bearer a-guess")[0] == 401


def test_another_protocol_version_is_told_apart(agent: AgentServer, monkeypatch: pytest.MonkeyPatch) -> None:
    said = f"it speaks protocol {PROTOCOL}, the probe 999"
    assert raw(agent, "GET", "/v1/hello", kvdiag_protocol="999") == (409, said)
    monkeypatch.setattr(client_module, "PROTOCOL", 999)
    with (
        AgentClient(agent.address, TOKEN, 5) as newer,
        pytest.raises(UnavailableError, match=f"{said}; install the same kvdiag version"),
    ):
        newer.hello()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "malformed request: "),
        (b"[]", "malformed request: Expected `object`"),
        (b'{"transport": "pigeon", "size": 1}', "Invalid enum value 'pigeon'"),
        (b'{"transport": "tcp", "size": 0}', ">= 1"),
        (b'{"transport": "tcp", "size": 9e99}', "malformed request"),
        (b'{"transport": "tcp", "size": 1, "sudo": true}', "unknown field `sudo`"),
    ],
)
def test_a_malformed_body_is_refused(agent: AgentServer, body: bytes, said: str) -> None:
    status, error = raw(agent, "POST", "/v1/sessions", body)
    assert status == 400 and said in error


def test_an_oversized_body_is_refused_before_it_is_read(agent: AgentServer) -> None:
    status, error = raw(agent, "POST", "/v1/sessions", b" " * 200_000)
    assert status == 413 and "at most 65536 bytes" in error


def test_a_body_that_never_comes_is_given_up(agent: AgentServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "BODY_TIMEOUT_S", 0.2)
    with socket.create_connection(("127.0.0.1", agent.address.port)) as slow:
        slow.settimeout(5)
        slow.sendall(
            b"POST /v1/sessions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer let-me-in\r\nkvdiag-protocol: %d\r\n"
            b"content-length: 100\r\n\r\n{" % PROTOCOL
        )
        assert b" 408 " in slow.recv(100)


def test_more_than_the_agent_allows_is_refused(client: AgentClient) -> None:
    with pytest.raises(UnavailableError, match=r"the agent refused: .* bytes asked for, .* left: use a smaller --size"):
        client.open(OpenRequest(transport=Transport.TCP, size=1 << 31))


def test_what_the_agent_s_host_cannot_do_is_undetermined(client: AgentClient) -> None:
    pair = QueuePairAddress(qpn=1, psn=1, gid="fe80::1", lid=0, mtu=1024, rd_atomic=1, rkey=1, address_text="4096")
    with pytest.raises(UndeterminedError, match=r"at the agent: (no RDMA|no port|.*pyverbs)"):
        client.open(OpenRequest(transport=Transport.RDMA, size=1, queue_pair=pair))


def await_refusal(port: int) -> None:
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.1)
    pytest.fail(f"port {port} still accepts connections")


def test_an_idle_session_is_reaped_and_its_data_path_cut() -> None:
    with serving(limits=Limits(session_idle_s=1)) as agent, AgentClient(agent.address, TOKEN, 5) as client:
        answer = client.open(OpenRequest(transport=Transport.TCP, size=10))
        assert answer.tcp_port
        await_refusal(answer.tcp_port)
        with pytest.raises(UnavailableError, match="freed because it was idle"):
            client.fill(answer.session, FillRequest(seed=1, size=1))


def test_a_refused_connection_a_silent_peer_and_a_stranger_are_each_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with (
            AgentClient(Address("127.0.0.1", port), TOKEN, 0.2) as client,
            pytest.raises(UnavailableError, match=r"no answer within 0.2 s \(--timeout\)"),
        ):
            client.hello()
    with (
        AgentClient(Address("127.0.0.1", port), TOKEN, 5) as client,
        pytest.raises(
            RefusedConnectionError, match=f"^127.0.0.1:{port}: Connection refused; is `kvdiag agent` running"
        ),
    ):
        client.hello()


def test_a_name_that_nobody_knows_is_not_told_as_an_agent_that_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> NoReturn:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    said = "^nohost:1: Name or service not known; the name 'nohost' has no address here: check how it is written"
    with AgentClient(Address("nohost", 1), TOKEN, 1) as client, pytest.raises(UnavailableError, match=said):
        client.hello()


def test_a_refusal_is_told_apart_while_another_error_is_handled() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    try:
        raise ValueError("the transfer failed")
    except ValueError:
        with AgentClient(Address("127.0.0.1", port), TOKEN, 5) as client, pytest.raises(RefusedConnectionError):
            client.hello()


def answering(reply: bytes) -> Iterator[Address]:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        yield Address("127.0.0.1", listener.getsockname()[1])
        thread.join(5)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi", "is no kvdiag agent"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "is it a kvdiag agent"),
        (
            b"HTTP/1.1 200 OK\r\nkvdiag-protocol: %d\r\ncontent-length: 2\r\n\r\nhi" % PROTOCOL,
            "its answer cannot be read",
        ),
        (
            b"HTTP/1.1 200 OK\r\nkvdiag-protocol: %d\r\ncontent-length: 99999999\r\n\r\n" % PROTOCOL
            + b"x" * 17_000_000,
            "longer than",
        ),
    ],
)
def test_a_stranger_s_answer_is_one_line(reply: bytes, said: str) -> None:
    for address in answering(reply):
        with AgentClient(address, TOKEN, 5) as client, pytest.raises(UnavailableError, match=said):
            client.hello()


def test_the_snapshot_carries_this_host_s_parts(agent: AgentServer) -> None:
    snapshot = fetch_snapshot(str(agent.address), TOKEN)
    assert snapshot.host == socket.gethostname()
    devices = snapshot.part(RdmaDevices)
    assert isinstance(devices, (RdmaDevices, Missing))
    assert "no source read" not in str(devices)


def test_mutual_tls_serves_who_has_a_certificate_and_nobody_else(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        (
            "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 "
            f"-keyout {key} -out {cert}"
        ).split(),
        check=True,
        capture_output=True,
    )
    mutual = Credential(cert=cert, key=key, ca=cert)
    with serving(mutual) as agent:
        with AgentClient(agent.address, mutual, 5) as client:
            assert client.hello().protocol == PROTOCOL
        for stranger in (Credential(ca=cert), Credential(token="t")):
            with (
                AgentClient(agent.address, stranger, 5) as client,
                pytest.raises(UnavailableError, match=r"^127\.0\.0\.1:"),
            ):
                client.hello()


def test_refused_tokens_are_logged_with_their_client_and_then_counted(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as agent:
        for _ in range(4):
            assert raw(agent, "GET", "/v1/hello", authorization="Bearer guess")[0] == 401
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == 2
    assert re.fullmatch(r"127\.0\.0\.1:\d+: refused: the token is wrong or missing", lines[0])
    assert re.fullmatch(
        r"3 more within \d+ s, the last 127\.0\.0\.1:\d+: refused: the token is wrong or missing", lines[1]
    )


def test_connections_that_ask_nothing_are_cut_and_counted_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections_module, "FIRST_REQUEST_S", 0.3)
    with serving() as agent, ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", agent.address.port)))
            for _ in range(server_module.MAX_CONNECTIONS)
        ]
        for one in silent:
            one.settimeout(5)
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(1) == b""
        # None of them keeps a probe out any more.
        with AgentClient(agent.address, TOKEN, 5) as client:
            assert client.hello().protocol == PROTOCOL
    lines = [record.getMessage() for record in caplog.records if "asked nothing" in record.getMessage()]
    assert len(lines) == 2 and lines[1].startswith(f"{server_module.MAX_CONNECTIONS - 1} more within ")


def test_an_address_in_use_is_not_the_users_mistake_and_one_of_another_host_is(agent: AgentServer) -> None:
    with pytest.raises(UnavailableError, match=rf"^--listen: {agent.address} is taken by another program; stop it"):
        AgentServer(agent.address, TOKEN, Sessions(no_target, Limits()))
    with pytest.raises(UsageError, match=r"^--listen: 192\.0\.2\.1 is no address of this host"):
        AgentServer(Address("192.0.2.1", 0), TOKEN, Sessions(no_target, Limits()))


def no_target(_: OpenRequest, __: str) -> NoReturn:
    raise AssertionError("nothing may be opened")


def test_a_device_that_is_not_there_is_refused_before_anything_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    factory = TargetFactory(DeviceOptions(device="mlx5_0,mlx5_7"), 60)
    monkeypatch.setattr(rdma_path, "read_devices", lambda: RdmaDevices(devices=()))
    with pytest.raises(UndeterminedError, match=r"^--device mlx5_0: no RDMA device on this host"):
        factory.check()
    monkeypatch.setattr(rdma_path, "read_devices", lambda: RdmaDevices(devices=(device("mlx5_0"),)))
    with pytest.raises(UsageError, match=r"^--device mlx5_7: there is none; there are mlx5_0$"):
        factory.check()
    TargetFactory(DeviceOptions(device="mlx5_0"), 60).check()


@pytest.mark.parametrize("stays", [True, False])
def test_an_agent_that_hangs_up_is_lost_only_where_it_listens_no_more(stays: bool) -> None:
    hello = Hello(
        protocol=PROTOCOL, version="", host="h", max_buffer_bytes=1, max_sessions=1, session_idle_s=1, time_s=0
    )
    body = msgspec.json.encode(hello)
    head = b"HTTP/1.1 200 OK\r\nkvdiag-protocol: %d\r\ncontent-length: %d\r\n\r\n" % (PROTOCOL, len(body))

    def answer_once() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(head + body)
            connection.recv(4096)
            if not stays:
                listener.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address(*listener.getsockname())
        thread = threading.Thread(target=answer_once)
        thread.start()
        with AgentClient(address, TOKEN, 5) as client:
            client.hello()
            with pytest.raises(UnavailableError) as caught:
                client.hello()
        thread.join()
    assert isinstance(caught.value, LostAgentError) is not stays
    said = (
        rf"{address}: .*, though it still listens" if stays else rf"lost the agent {address} after \d+\.\d s of this "
    )
    assert re.match(said, str(caught.value))


def test_a_rail_that_an_agent_has_no_device_for_is_told_at_both_ends_flags() -> None:
    assert [_rail("a,b", rail) for rail in range(3)] == ["a", "b", "a"] and _rail(None, 0) is None
    with pytest.raises(UndeterminedError, match="the probe's --device names 2 or more devices, this agent serves one"):
        _rail("a", 1)
