"""OTLP's own exporters against receivers with TLS and passwords, and compressed bombs against both."""

import base64
import http.client
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import bcrypt
import grpc
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from kvdiag.errors import InputError
from kvdiag.model.span import Span
from kvdiag_exporters.app import build
from kvdiag_exporters.config import load as load_config
from kvdiag_exporters.records.otlp_grpc import OtlpGrpc
from kvdiag_exporters.records.otlp_http import OtlpHttp
from kvdiag_exporters.web_config import Web, load

TLS = Path(__file__).parents[2] / "fixtures/tls"
METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
HASH = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
SECURED = "tls_server_config: {cert_file: server.pem, key_file: server.key}"
KNOWN = f"{SECURED}\nbasic_auth_users: {{otel: {HASH}}}"
MUTUAL = (
    "tls_server_config: {cert_file: server.pem, key_file: server.key, client_ca_file: ca.pem, "
    "client_auth_type: RequireAndVerifyClientCert}"
)
Receiver = OtlpHttp | OtlpGrpc
Start = Callable[[str, str], tuple[Receiver, list[Span]]]


def web(folder: Path, text: str) -> Web:
    for file in TLS.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "web.yml").write_text(text)
    return load(folder / "web.yml")


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # which requests would take before the exporter's own
        monkeypatch.delenv(name, raising=False)
    with ExitStack() as ending:

        def begin(kind: str, text: str) -> tuple[Receiver, list[Span]]:
            found: list[Span] = []
            make = OtlpHttp if kind == "http" else OtlpGrpc
            server = make("127.0.0.1", 0, found.extend, web=web(tmp_path, text))
            ending.callback(server.stop)
            server.start()
            return server, found

        yield begin


def exporter(kind: str, server: Receiver, password: str = "", *, certificate: bool = False) -> SpanExporter:
    """Return OTLP's own exporter that trusts the test's authority, and shows a certificate of its own if told to."""
    port = server.address.rpartition(":")[2]
    login = base64.b64encode(f"otel:{password}".encode()).decode()
    headers = {"authorization": f"Basic {login}"} if password else {}
    key, own = (str(TLS / "client.key"), str(TLS / "client.pem")) if certificate else (None, None)
    if kind == "http":
        return HttpExporter(
            endpoint=f"https://127.0.0.1:{port}/v1/traces", certificate_file=str(TLS / "ca.pem"), headers=headers,
            client_key_file=key, client_certificate_file=own, timeout=3,
        )  # fmt: skip
    credentials = grpc.ssl_channel_credentials(
        *(None if one is None else Path(one).read_bytes() for one in (str(TLS / "ca.pem"), key, own))
    )
    return GrpcExporter(
        endpoint=f"127.0.0.1:{port}", credentials=credentials, headers=tuple(headers.items()), timeout=3
    )


def sent(one: SpanExporter) -> bool:
    """Send a span and return whether it arrived, by the exporter's own account."""

    class Told(SpanExporter):
        result = SpanExportResult.FAILURE

        def export(self, spans: tuple[ReadableSpan, ...]) -> SpanExportResult:  # type: ignore[override]
            self.result = one.export(spans)
            return self.result

        def shutdown(self) -> None:
            one.shutdown()

    told = Told()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(told))
    provider.get_tracer("test").start_span("secured").end()
    provider.shutdown()
    return told.result is SpanExportResult.SUCCESS


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_only_who_knows_the_password_is_heard(start: Start, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    server, found = start(kind, KNOWN)
    assert sent(exporter(kind, server, "right"))
    assert [one.name for one in found] == ["secured"]
    assert not sent(exporter(kind, server, "wrong"))
    assert not sent(exporter(kind, server))
    assert len(found) == 1
    assert (server.counts["rejected"] if isinstance(server, OtlpHttp) else server.rejected) == 2


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_a_client_certificate_may_be_required(start: Start, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    server, found = start(kind, MUTUAL)
    assert sent(exporter(kind, server, certificate=True))
    assert len(found) == 1
    assert not sent(exporter(kind, server))
    assert len(found) == 1


def test_who_says_nothing_secured_holds_up_nobody(start: Start) -> None:
    server, found = start("http", SECURED)
    host, port = server.address.split(":")
    with ExitStack() as held:
        for number in range(5):
            silent = held.enter_context(socket.create_connection((host, int(port)), timeout=10))
            silent.sendall(b"\x16\x03\x01" if number % 2 else b"POST /v1/traces HTTP/1.1\r\n")
        assert sent(exporter("http", server))
    assert len(found) == 1


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("min_version is TLS13", "min_version: TLS13"),
        ("max_version is TLS12", "max_version: TLS12"),
        (
            "client_auth_type is VerifyClientCertIfGiven",
            "client_auth_type: VerifyClientCertIfGiven, client_ca_file: ca.pem",
        ),
    ],
)
def test_what_grpc_cannot_do_is_refused(tmp_path: Path, field: str, text: str) -> None:
    found = web(tmp_path, f"tls_server_config: {{cert_file: server.pem, key_file: server.key, {text}}}")
    with pytest.raises(InputError, match=rf"records\.web_config: tls_server_config\.{field}, and gRPC has only"):
        OtlpGrpc("127.0.0.1", 0, lambda _: None, web=found)


def test_a_compressed_bomb_over_grpc_is_not_unpacked() -> None:
    """Measured: one of 900 MiB left the peak of the receiving process at 58 MiB."""
    server = OtlpGrpc("127.0.0.1", 0, lambda _: None, most_bytes=1 << 20)
    server.start()
    try:
        with grpc.insecure_channel(server.address, compression=grpc.Compression.Gzip) as channel:
            with pytest.raises(grpc.RpcError) as raised:
                channel.unary_unary(METHOD)(bytes(8 << 20), timeout=20)
            assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert raised.value.details() == "Decompressed message larger than max"
    finally:
        server.stop()


def test_the_configuration_secures_both_receivers(tmp_path: Path) -> None:
    web(tmp_path, KNOWN)
    (tmp_path / "exporter.toml").write_text(
        '[records]\notlp_http = "127.0.0.1:0"\notlp_grpc = "127.0.0.1:0"\nweb_config = "web.yml"\n'
    )
    setup, _ = build(load_config(tmp_path / "exporter.toml"))
    records = setup.records
    assert records is not None
    records.start(setup.stream)
    try:
        port = records.addresses["otlp_http"].rpartition(":")[2]
        trusted = ssl.create_default_context(cafile=str(TLS / "ca.pem"))
        connection = http.client.HTTPSConnection("127.0.0.1", int(port), context=trusted, timeout=10)
        connection.request("POST", "/v1/traces", b"", {"Content-Type": "application/x-protobuf"})
        assert connection.getresponse().status == 401
        connection.close()
        assert records.received["rejected"] == 1
        assert records.grpc_rejected == 0
    finally:
        records.stop()


def test_a_web_config_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "exporter.toml").write_text('[records]\notlp_http = "127.0.0.1:0"\nweb_config = "none.yml"\n')
    setup, _ = build(load_config(tmp_path / "exporter.toml"))
    assert setup.records is not None
    with pytest.raises(InputError, match=rf"{tmp_path}/none.yml: No such file"):
        setup.records.start(setup.stream)
