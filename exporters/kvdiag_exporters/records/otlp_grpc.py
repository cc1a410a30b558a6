"""OTLP over gRPC: the trace service alone, with bounded messages, calls and idle connections."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc

from kvdiag.errors import InputError, UnavailableError
from kvdiag_exporters.records.otlp import MOST_BYTES, Export, from_protobuf
from kvdiag_exporters.web_config import Web

THREADS = 2
MOST_CALLS = 64
"""At a time, waiting ones counted; a further one is answered RESOURCE_EXHAUSTED, and its sender tries again."""
_SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"
_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_metadata_size", 16384),
    ("grpc.max_concurrent_streams", MOST_CALLS),
    # A peer that went without a word is found by pings, and one that says nothing is let go: both in milliseconds.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 300_000),
    ("grpc.handshake_timeout_ms", 10_000),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.so_reuseport", 0),
)

Accept = Callable[[Export], bool | None]


class OtlpGrpc:
    """Listens until `stop`; `address` is HOST:PORT as bound. `rejected` counts calls of nobody known to `web`, and
    those that were no export. InputError where `web` asks for what gRPC's own TLS has not.
    """

    def __init__(
        self, host: str, port: int, accept: Accept, most_bytes: int = MOST_BYTES, web: Web | None = None
    ) -> None:
        self.rejected = 0

        def export(body: bytes, context: grpc.ServicerContext) -> bytes:
            if web is not None and not web.allowed(_authorization(context)):
                self.rejected += 1
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "name and password, please")
            try:
                taken = accept(from_protobuf(body))
            except InputError as error:
                self.rejected += 1
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            if taken is False:  # the code that OTLP's senders take for one to try again after
                context.abort(grpc.StatusCode.UNAVAILABLE, "too much at a time; send this again later")
            return b""  # an ExportTraceServiceResponse: everything was taken

        handler = grpc.unary_unary_rpc_method_handler(export)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="otlp-grpc")
        self._server = grpc.server(
            self._pool,
            handlers=(grpc.method_handlers_generic_handler(_SERVICE, {"Export": handler}),),
            options=(*_OPTIONS, ("grpc.max_receive_message_length", most_bytes)),
            maximum_concurrent_rpcs=MOST_CALLS,
        )
        shown = f"[{host}]" if ":" in host else host
        try:
            credentials = None if web is None else _credentials(web)
            if credentials is None:
                bound = self._server.add_insecure_port(f"{shown}:{port}")
            else:
                bound = self._server.add_secure_port(f"{shown}:{port}", credentials)
        except InputError:
            self._pool.shutdown(wait=False)
            raise
        except RuntimeError as error:
            self._pool.shutdown(wait=False)
            raise UnavailableError(
                f"records.otlp_grpc: cannot listen on {shown}:{port}; it is taken, or no address of this host; choose "
                "another (port 0: any free one)"
            ) from error
        self.address = f"{shown}:{bound}"

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        """Take no more calls; those in progress are cut after a tenth of a second."""
        self._server.stop(0.1).wait(0.3)
        self._pool.shutdown(wait=False, cancel_futures=True)


def check_web(web: Web) -> None:
    """Raise InputError where a web-config asks for what gRPC's own TLS has not: never less than what is asked for."""
    tls = web.tls
    if tls is None:
        return
    for field, wanted, there in (
        ("min_version", tls.min_version, ("TLS12",)),
        ("max_version", tls.max_version, ("TLS13",)),
        ("client_auth_type", tls.client_auth_type, ("NoClientCert", "RequireAndVerifyClientCert")),
    ):
        if wanted not in there:
            raise InputError(
                f"records.web_config: tls_server_config.{field} is {wanted}, and gRPC has only {' and '.join(there)}; "
                "listen at otlp_http only, or change it"
            )


def _credentials(web: Web) -> grpc.ServerCredentials | None:
    check_web(web)
    tls = web.tls
    if tls is None:
        return None
    required = tls.client_auth_type == "RequireAndVerifyClientCert"
    authority = (web.base / tls.client_ca_file).read_bytes() if tls.client_ca_file is not None and required else None
    pair = ((web.base / tls.key_file).read_bytes(), (web.base / tls.cert_file).read_bytes())
    return grpc.ssl_server_credentials([pair], root_certificates=authority, require_client_auth=required)


def _authorization(context: grpc.ServicerContext) -> str:
    """Return the call's metadatum `authorization`, the header's name in HTTP/2."""
    for key, value in context.invocation_metadata():
        if key == "authorization":
            return value if isinstance(value, str) else value.decode("latin-1")
    return ""
