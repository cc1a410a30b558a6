"""The agent's HTTP end: authenticates, bounds and decodes each request, and hands it to the sessions."""

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeVar

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import kvdiag
from kvdiag.errors import InputError, KvdiagError, UnavailableError, UndeterminedError, UsageError
from kvdiag.sources.certificates import load_authority, load_pair
from kvdiag_probes.control.address import Address, resolve
from kvdiag_probes.control.connections import note_handshakes, protocol_class
from kvdiag_probes.control.credential import Credential, check_listen
from kvdiag_probes.control.messages import (
    MAX_REQUEST_BYTES,
    PROTOCOL,
    PROTOCOL_HEADER,
    FillRequest,
    Hello,
    OpenRequest,
    PassRequest,
    ReceiveRequest,
    Refusal,
    ServeRequest,
    VerifyRequest,
)
from kvdiag_probes.control.sessions import Sessions
from kvdiag_probes.control.snapshot import encode_snapshot, read_snapshot
from kvdiag_probes.control.tally import Tally

BODY_TIMEOUT_S = 10.0
MAX_CONNECTIONS = 64
_REAP_EVERY_S = 1.0
# The order matters: the first class that fits gives the HTTP status.
_STATUS_OF = ((InputError, 404), (UsageError, 422), (UndeterminedError, 422), (UnavailableError, 503))
_log = logging.getLogger(__name__)
T = TypeVar("T")


class AgentServer:
    """Listens from construction on; `serve` runs until `stop`, then frees every session."""

    def __init__(self, listen: Address, credential: Credential, sessions: Sessions) -> None:
        check_listen(listen.host, credential)
        self._sessions = sessions
        self._socket = _listen(listen)
        self.address = Address(*self._socket.getsockname()[:2])
        self._tally = Tally(_log.warning)
        config = uvicorn.Config(
            build_app(sessions, credential, self._tally),
            http=protocol_class(self._tally),
            log_config=None,
            access_log=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=int(max(5, sessions.limits.session_idle_s)),
            timeout_graceful_shutdown=2,
            ws="none",
            server_header=False,
            ssl_certfile=credential.cert,
            ssl_keyfile=credential.key,
            ssl_ca_certs=None if credential.ca is None else str(credential.ca),
            ssl_cert_reqs=ssl.CERT_NONE if credential.ca is None else ssl.CERT_REQUIRED,
        )
        try:
            if credential.cert is not None:
                load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), credential.cert, credential.key)
            if credential.ca is not None:
                load_authority(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), credential.ca)
            config.load()
        except (OSError, ValueError) as error:
            self._socket.close()
            raise UsageError(f"--tls-cert/--tls-key/--tls-ca: {error}") from error
        if config.ssl is not None:
            note_handshakes(config.ssl, self._tally)
        self._server = _Server(config)

    def serve(self) -> None:
        """Serve requests until stopped."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._sessions.close_all()
            self._socket.close()
            self._tally.flush(everything=True)

    def stop(self) -> None:
        """Make `serve` return, from any thread or signal handler."""
        self._server.should_exit = True


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn raises a caught signal again once it is done, which would end the process before the clean-up.
        yield


def build_app(sessions: Sessions, credential: Credential, tally: Tally) -> ASGIApp:
    """Return the ASGI application; every route is behind the credential and the protocol version.

    The tally gets what is refused.
    """

    async def hello(_: Request) -> Response:
        limits = sessions.limits
        return _answer(
            Hello(
                protocol=PROTOCOL,
                version=kvdiag.__version__,
                host=socket.gethostname(),
                max_buffer_bytes=limits.max_buffer_bytes,
                max_sessions=limits.max_sessions,
                session_idle_s=limits.session_idle_s,
                time_s=time.time(),
            )
        )

    async def open_session(request: Request) -> Response:
        message = await _decode(request, OpenRequest)
        answer = await run_in_threadpool(sessions.open, message, request.scope["server"][0])
        _log.info("%s opened a session: %s, %d bytes", _client(request), message.transport, message.size)
        return _answer(answer)

    async def fill(request: Request) -> Response:
        await run_in_threadpool(sessions.fill, request.path_params["name"], await _decode(request, FillRequest))
        return Response(status_code=204)

    async def verify(request: Request) -> Response:
        message = await _decode(request, VerifyRequest)
        return _answer(await run_in_threadpool(sessions.verify, request.path_params["name"], message))

    async def receive(request: Request) -> Response:
        message = await _decode(request, ReceiveRequest)
        await run_in_threadpool(sessions.receive, request.path_params["name"], message)
        return Response(status_code=204)

    async def serve(request: Request) -> Response:
        await run_in_threadpool(sessions.serve, request.path_params["name"], await _decode(request, ServeRequest))
        return Response(status_code=204)

    async def arm(request: Request) -> Response:
        await run_in_threadpool(sessions.arm, request.path_params["name"], await _decode(request, PassRequest))
        return Response(status_code=204)

    async def collect(request: Request) -> Response:
        return _answer(await run_in_threadpool(sessions.collect, request.path_params["name"]))

    async def close(request: Request) -> Response:
        await run_in_threadpool(sessions.close, request.path_params["name"])
        return Response(status_code=204)

    async def snapshot(_: Request) -> Response:
        return _answer(await run_in_threadpool(lambda: encode_snapshot(read_snapshot())))

    @contextlib.asynccontextmanager
    async def reaping(_: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(_reap(sessions, tally))
        try:
            yield
        finally:
            task.cancel()

    application = Starlette(
        routes=[
            Route("/v1/hello", _guarded(hello)),
            Route("/v1/snapshot", _guarded(snapshot)),
            Route("/v1/sessions", _guarded(open_session), methods=["POST"]),
            Route("/v1/sessions/{name}", _guarded(close), methods=["DELETE"]),
            Route("/v1/sessions/{name}/fill", _guarded(fill), methods=["POST"]),
            Route("/v1/sessions/{name}/verify", _guarded(verify), methods=["POST"]),
            Route("/v1/sessions/{name}/receive", _guarded(receive), methods=["POST"]),
            Route("/v1/sessions/{name}/serve", _guarded(serve), methods=["POST"]),
            Route("/v1/sessions/{name}/pass", _guarded(arm), methods=["POST"]),
            Route("/v1/sessions/{name}/pass", _guarded(collect), methods=["GET"]),
        ],
        lifespan=reaping,
    )
    return _Gate(application, credential, tally)


class _Gate:
    """Stamps every answer with the protocol version, and lets only the right version and credential in."""

    def __init__(self, application: ASGIApp, credential: Credential, tally: Tally) -> None:
        self._application = application
        self._credential = credential
        self._tally = tally

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return

        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (PROTOCOL_HEADER.encode(), str(PROTOCOL).encode())]
            await send(message)

        headers = Request(scope).headers
        theirs = headers.get(PROTOCOL_HEADER, "none")
        if not self._credential.accepts(headers.get("authorization", "")):
            self._tally.note(scope["client"], "refused: the token is wrong or missing")
            refusal = _refuse(401, "the token is wrong or missing")
            await refusal(scope, receive, stamped)
        elif theirs != str(PROTOCOL):
            self._tally.note(scope["client"], f"refused: it speaks another protocol than {PROTOCOL}")
            refusal = _refuse(409, f"it speaks protocol {PROTOCOL}, the probe {theirs[:20]}")
            await refusal(scope, receive, stamped)
        else:
            await self._application(scope, receive, stamped)


def _guarded(handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    async def guarded(request: Request) -> Response:
        try:
            return await handler(request)
        except _TooLargeError:
            return _refuse(413, f"a request body holds at most {MAX_REQUEST_BYTES} bytes")
        except TimeoutError:
            return _refuse(408, f"the request body did not arrive within {BODY_TIMEOUT_S:g} s")
        except msgspec.MsgspecError as error:
            return _refuse(400, f"malformed request: {error}")
        except ClientDisconnect:
            return Response(status_code=400)
        except KvdiagError as error:
            return _refuse(next((status for kind, status in _STATUS_OF if isinstance(error, kind)), 500), str(error))
        except Exception as error:
            what = f"{request.method} {request.url.path}"
            _log.error("%s of %s failed: %s: %s", what, _client(request), type(error).__name__, error)
            _log.debug("traceback", exc_info=True)
            return _refuse(500, f"internal error: {type(error).__name__}: {error}")

    return guarded


class _TooLargeError(Exception):
    pass


async def _decode(request: Request, message_type: type[T]) -> T:
    body = bytearray()
    async with asyncio.timeout(BODY_TIMEOUT_S):
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_REQUEST_BYTES:
                raise _TooLargeError
    return msgspec.json.decode(bytes(body), type=message_type)


def _client(request: Request) -> str:
    return "unknown" if request.client is None else str(Address(request.client.host, request.client.port))


async def _reap(sessions: Sessions, tally: Tally) -> None:
    while True:
        await asyncio.sleep(min(_REAP_EVERY_S, sessions.limits.session_idle_s / 2))
        reaped = await run_in_threadpool(sessions.reap)
        tally.flush()
        if reaped:
            _log.warning("freed %d session(s) idle for more than %g s", reaped, sessions.limits.session_idle_s)


def _answer(message: Any) -> Response:
    return Response(msgspec.json.encode(message), media_type="application/json")


def _refuse(status: int, error: str) -> Response:
    refusal = Refusal(error=" ".join(error.split())[:1024])
    return Response(msgspec.json.encode(refusal), status_code=status, media_type="application/json")


def _listen(listen: Address) -> socket.socket:
    family, address = resolve(listen, "--listen")
    try:
        listener = socket.create_server(address, family=family, backlog=MAX_CONNECTIONS)
        # Inherited by every connection: answers of two writes must not wait for the peer's delayed acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        # socket.create_server adds the address to the system's words.
        said = os.strerror(error.errno) if error.errno else str(error)
        if error.errno == errno.EADDRINUSE:
            hint = "stop it, or choose another port (0: any free one)"
            raise UnavailableError(f"--listen: {listen} is taken by another program; {hint}") from error
        if error.errno == errno.EADDRNOTAVAIL:
            hint = "choose one of its own, or 127.0.0.1"
            raise UsageError(f"--listen: {listen.host} is no address of this host; {hint}") from error
        raise UsageError(f"--listen: cannot listen on {listen}: {said}; choose another port") from error
