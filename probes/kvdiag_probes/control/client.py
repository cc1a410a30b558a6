"""The probe's HTTP end: every failure is one line that names the peer, what it said, and what to do."""

import socket
import ssl
import time
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
import msgspec

from kvdiag.errors import UnavailableError, UndeterminedError
from kvdiag.model.snapshot import Snapshot
from kvdiag_probes import tcp_info
from kvdiag_probes.control import tls
from kvdiag_probes.control.address import Address, parse_address
from kvdiag_probes.control.credential import Credential
from kvdiag_probes.control.messages import (
    MAX_ANSWER_BYTES,
    PROTOCOL,
    PROTOCOL_HEADER,
    FillRequest,
    Hello,
    OpenAnswer,
    OpenRequest,
    PassAnswer,
    PassRequest,
    ReceiveRequest,
    Refusal,
    ServeRequest,
    SnapshotAnswer,
    VerifyAnswer,
    VerifyRequest,
)
from kvdiag_probes.control.snapshot import decode_snapshot

T = TypeVar("T")
_KEEP_ALIVE_S = 3600.0
_LOOK_S = 2.0


class RefusedConnectionError(UnavailableError):
    """The peer's host answers, but nothing listens on the port."""


class LostAgentError(UnavailableError):
    """The agent answered before, and nothing listens on its port any more."""


class AgentClient:
    """One connection to an agent. Each call answers within `timeout_s`, or raises UnavailableError.

    Where the block that uses it fails and the agent is found gone, the error is a LostAgentError that says so.
    """

    def __init__(self, peer: Address, credential: Credential, timeout_s: float) -> None:
        self.peer = peer
        self._credential = credential
        self._timeout_s = timeout_s
        self._since_s = time.monotonic()
        self._met = False
        self._moved: dict[int, tuple[int, int]] = {}
        self.local_address = ""
        headers = {PROTOCOL_HEADER: str(PROTOCOL)}
        if credential.token:
            headers["authorization"] = f"Bearer {credential.token}"
        self._client = httpx.Client(
            base_url=f"{'https' if credential.tls else 'http'}://{peer}",
            headers=headers,
            timeout=timeout_s,
            verify=credential.client_context() if credential.tls else False,
            limits=httpx.Limits(max_connections=1, keepalive_expiry=_KEEP_ALIVE_S),
            trust_env=False,  # a proxy for the web is no way to a neighbour
        )

    @property
    def moved_bytes(self) -> tuple[int, int]:
        """Bytes that the kernel says were acknowledged and received on the control connection so far."""
        return sum(sent for sent, _ in self._moved.values()), sum(received for _, received in self._moved.values())

    def hello(self) -> Hello:
        """Ask who the agent is and what its limits are."""
        return self._ask("GET", "/v1/hello", Hello)

    def open(self, request: OpenRequest, patience_s: float = 0.0) -> OpenAnswer:
        """Ask for a session; `patience_s` is how long that may take where it is longer than the timeout."""
        return self._ask("POST", "/v1/sessions", OpenAnswer, request, patience_s)

    def fill(self, session: str, request: FillRequest) -> None:
        """Have the agent write a pattern into its buffer."""
        self._send("POST", f"/v1/sessions/{session}/fill", request)

    def verify(self, session: str, request: VerifyRequest) -> VerifyAnswer:
        """Have the agent compare its buffer with a pattern."""
        return self._ask("POST", f"/v1/sessions/{session}/verify", VerifyAnswer, request)

    def receive(self, session: str, request: ReceiveRequest) -> None:
        """Have the agent post receives for messages with immediate data."""
        self._send("POST", f"/v1/sessions/{session}/receive", request)

    def serve(self, session: str, request: ServeRequest) -> None:
        """Have the agent progress the session's transport for a while."""
        self._send("POST", f"/v1/sessions/{session}/serve", request)

    def arm(self, session: str, request: PassRequest) -> None:
        """Have the agent get a pass ready that waits for a flag."""
        self._send("POST", f"/v1/sessions/{session}/pass", request)

    def collect(self, session: str) -> PassAnswer:
        """Return how the agent's pass went, once it is over."""
        return self._ask("GET", f"/v1/sessions/{session}/pass", PassAnswer)

    def close_session(self, session: str) -> None:
        """Have the agent free a session."""
        self._send("DELETE", f"/v1/sessions/{session}")

    def snapshot(self) -> Snapshot:
        """Return the agent's host's snapshot."""
        return decode_snapshot(self._ask("GET", "/v1/snapshot", SnapshotAnswer))

    def brief(self) -> "AgentClient":
        """Return another connection to the agent, which waits a little while only."""
        return AgentClient(self.peer, self._credential, min(self._timeout_s, _LOOK_S))

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
        if isinstance(error, UnavailableError) and not isinstance(error, LostAgentError) and self._gone():
            raise self._lost(str(error).removeprefix(f"{self.peer}: ")) from error

    def _ask(self, method: str, path: str, answer_type: type[T], message: Any = None, patience_s: float = 0.0) -> T:
        body = self._send(method, path, message, patience_s)
        try:
            return msgspec.json.decode(body, type=answer_type)
        except msgspec.MsgspecError as error:
            raise self._unavailable(f"its answer cannot be read: {error}; run the same version at both ends") from error

    def _send(self, method: str, path: str, message: Any = None, patience_s: float = 0.0) -> bytes:
        content = None if message is None else msgspec.json.encode(message)
        limit_s = max(self._timeout_s, patience_s)
        limit = f"{limit_s:g} s" if limit_s > self._timeout_s else f"{limit_s:g} s (--timeout)"
        deadline_s = time.monotonic() + limit_s
        timeout = httpx.Timeout(limit_s, connect=self._timeout_s)
        try:
            with self._client.stream(method, path, content=content, timeout=timeout) as response:
                body = self._read(response, deadline_s, f"{method} {path} took longer than {limit}")
                self._note(response)
            self._met = True
        except httpx.ConnectError as error:
            self._explain_tls(error)
            if self._met:
                raise self._lost(_reason(error)) from error
            kind = RefusedConnectionError if isinstance(_root(error), ConnectionRefusedError) else UnavailableError
            hint = "is `kvdiag agent` running there, and the port open?"
            if isinstance(_root(error), socket.gaierror):
                hint = f"the name {self.peer.host!r} has no address here: check how it is written, or give the address"
            raise kind(f"{self.peer}: {_reason(error)}; {hint}") from error
        except httpx.TimeoutException as error:
            if self._met:
                raise self._lost(f"no answer within {limit}", "is it stopped, or its host busy or cut off?") from error
            raise self._unavailable(f"no answer within {limit}; is it the right host?") from error
        except httpx.HTTPError as error:
            self._explain_tls(error)
            if self._met:
                raise self._broken_off(error) from error
            hint = "is it a kvdiag agent, and TLS (--tls-ca, --tls-cert) the same at both ends?"
            raise self._unavailable(f"{_reason(error)}; {hint}") from error
        self._check(response, body)
        return body

    def _read(self, response: httpx.Response, deadline_s: float, late: str) -> bytes:
        body = bytearray()
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > MAX_ANSWER_BYTES:
                raise self._unavailable(f"its answer is longer than {MAX_ANSWER_BYTES} bytes; is it a kvdiag agent?")
            if time.monotonic() > deadline_s:
                raise self._unavailable(f"its answer to {late}")
        return bytes(body)

    def _note(self, response: httpx.Response) -> None:
        stream = response.extensions.get("network_stream")
        connection = None if stream is None else stream.get_extra_info("socket")
        if connection is None:
            return
        try:
            self.local_address = str(connection.getsockname()[0])
            self._moved[id(stream)] = tcp_info.moved_bytes(connection)
        except OSError:
            return  # the agent closed the connection after its answer

    def _check(self, response: httpx.Response, body: bytes) -> None:
        theirs = response.headers.get(PROTOCOL_HEADER)
        if theirs is None:
            raise self._unavailable(f"it answers HTTP {response.status_code} but is no kvdiag agent; check the port")
        if response.is_success and theirs == str(PROTOCOL):
            return
        try:
            said = msgspec.json.decode(body, type=Refusal).error
        except msgspec.MsgspecError:
            said = f"HTTP {response.status_code}"
        if response.status_code == 401:
            raise self._unavailable(f"the agent refused: {said}; give its --token-file or KVDIAG_TOKEN")
        if theirs != str(PROTOCOL):
            said = f"it speaks protocol {theirs[:20]}, the probe {PROTOCOL}"
            raise self._unavailable(f"{said}; install the same kvdiag version at both ends")
        if response.status_code == 422:
            raise UndeterminedError(f"{self.peer}: at the agent: {said}")
        raise self._unavailable(f"the agent refused: {said}")

    def _explain_tls(self, error: httpx.HTTPError) -> None:
        """Raise where the two ends disagree about TLS or its certificates."""
        root = _root(error)
        if isinstance(root, ssl.SSLError):
            raise self._unavailable(tls.explain(root, self._credential)) from error
        if self._met or isinstance(error, httpx.ConnectError):
            return
        if self._credential.tls:
            raise self._unavailable(tls.cut_off(self._credential)) from error
        if tls.speaks_tls(self.peer):
            raise self._unavailable(
                "it speaks TLS, the probe does not: give as --tls-ca the authority that signed the agent's --tls-cert, "
                "and --tls-cert and --tls-key where the agent demands them"
            ) from error

    def _gone(self) -> bool:
        """Whether the agent answered before and its port now refuses connections."""
        if not self._met:
            return False
        try:
            socket.create_connection((self.peer.host, self.peer.port), min(self._timeout_s, _LOOK_S)).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False

    def _broken_off(self, error: httpx.HTTPError) -> UnavailableError:
        """Return what to say of a connection that ended in mid-run: the agent went away, or only hung up."""
        if self._gone():
            return self._lost(_reason(error))
        return self._unavailable(
            f"{_reason(error).rstrip('.')}, though it still listens; was it started again, or did a slow probe say "
            "nothing for longer than the agent's --idle?"
        )

    def _lost(self, why: str, hint: str = "see its log, and start it again") -> LostAgentError:
        seconds = time.monotonic() - self._since_s
        return LostAgentError(
            f"lost the agent {self.peer} after {seconds:.1f} s of this connection: {why.rstrip('.')}; {hint}"
        )

    def _unavailable(self, text: str) -> UnavailableError:
        return UnavailableError(f"{self.peer}: {text}")


def fetch_snapshot(peer: str, credential: Credential, timeout_s: float = 10.0) -> Snapshot:
    """Return the snapshot of a peer's host, asked of its agent at HOST:PORT.

    UsageError for a malformed address (named --peer); UnavailableError where the agent cannot be reached or refuses.
    """
    with AgentClient(parse_address(peer, "--peer"), credential, timeout_s) as client:
        return client.snapshot()


def _reason(error: Exception) -> str:
    cause = _root(error)
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__


def _root(error: BaseException) -> BaseException:
    """Return the system's own error behind an HTTP library's; never one that was being handled before."""
    while not isinstance(error, OSError) and (inner := error.__cause__ or error.__context__):
        error = inner
    return error
