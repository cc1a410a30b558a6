"""Ends that disagree about TLS: every line says which end, whose file, and what to do. Real handshakes on loopback."""

import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvdiag.errors import UnavailableError, UsageError
from kvdiag_probes.control.address import Address
from kvdiag_probes.control.client import AgentClient
from kvdiag_probes.control.credential import Credential
from kvdiag_probes.control.server import AgentServer
from kvdiag_probes.control.tls import explain, speaks_tls
from tests.probes.agents import TOKEN, serving


def certificate(folder: Path, name: str, address: str = "IP:127.0.0.1") -> tuple[Path, Path]:
    """Return a self-signed certificate, which is its own authority, and its key."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(
        (
            f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN={name} "
            f"-addext subjectAltName={address} -keyout {key} -out {cert}"
        ).split(),
        check=True,
        capture_output=True,
    )
    return cert, key


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("certificates")
    certificate(made, "agent")
    certificate(made, "other")
    certificate(made, "elsewhere", "IP:10.9.9.9")
    return made


def own(folder: Path, name: str, **more: Path) -> Credential:
    return Credential(token="let-me-in", cert=folder / f"{name}.pem", key=folder / f"{name}.key", **more)


@pytest.fixture(scope="module")
def plain() -> Iterator[AgentServer]:
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def secure(folder: Path) -> Iterator[AgentServer]:
    with serving(own(folder, "agent")) as server:
        yield server


@pytest.fixture(scope="module")
def mutual(folder: Path) -> Iterator[AgentServer]:
    with serving(own(folder, "agent", ca=folder / "agent.pem")) as server:
        yield server


def said(server: AgentServer, credential: Credential) -> str:
    """Return the one line of a probe that fails at its first question."""
    with AgentClient(server.address, credential, 5) as client, pytest.raises(UnavailableError) as caught:
        client.hello()
    text = str(caught.value)
    assert "\n" not in text
    return text.removeprefix(f"{server.address}: ")


def test_a_plain_probe_at_a_tls_port(secure: AgentServer) -> None:
    assert said(secure, TOKEN).startswith("it speaks TLS, the probe does not: give as --tls-ca the authority")


def test_a_tls_probe_at_a_plain_port(plain: AgentServer, folder: Path) -> None:
    ca = Credential(token="let-me-in", ca=folder / "agent.pem")
    assert said(plain, ca).startswith("it does not speak TLS, and --tls-ca makes the probe do so: leave that out")


def test_the_wrong_authority_is_named_with_its_file(secure: AgentServer, folder: Path) -> None:
    text = said(secure, Credential(token="let-me-in", ca=folder / "other.pem"))
    assert text.startswith(f"the agent's certificate is not signed by --tls-ca {folder / 'other.pem'} (")
    assert text.endswith("give as --tls-ca the authority that signed the agent's --tls-cert")


def test_without_an_authority_the_systems_are_named(secure: AgentServer, folder: Path) -> None:
    assert "not signed by the system's authorities (no --tls-ca was given)" in said(secure, own(folder, "other"))


def test_a_certificate_for_another_name_says_so(folder: Path) -> None:
    with serving(own(folder, "elsewhere")) as server:
        text = said(server, Credential(token="let-me-in", ca=folder / "elsewhere.pem"))
    assert text.startswith("the agent's certificate is for another name (IP address mismatch")


def test_an_agent_that_demands_a_certificate_says_which_flags(mutual: AgentServer, folder: Path) -> None:
    assert "it demands a client certificate" in said(mutual, Credential(token="let-me-in", ca=folder / "agent.pem"))


def test_an_agent_that_distrusts_the_probes_certificate_names_its_file(mutual: AgentServer, folder: Path) -> None:
    text = said(mutual, own(folder, "other", ca=folder / "agent.pem"))
    assert f"it does not trust the certificate of --tls-cert {folder / 'other.pem'}" in text


def test_alerts_are_told_apart_where_the_agent_sends_them(folder: Path) -> None:
    strange = own(folder, "other", ca=folder / "agent.pem")
    bare = Credential(ca=folder / "agent.pem")
    assert "it does not trust the certificate" in explain(alert("TLSV1_ALERT_UNKNOWN_CA"), strange)
    assert "it demands a client certificate" in explain(alert("TLSV13_ALERT_CERTIFICATE_REQUIRED"), bare)
    assert explain(alert("TLSV1_ALERT_INTERNAL_ERROR"), bare).startswith("TLS failed: internal error; ")


def alert(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


def test_who_speaks_tls_is_seen_without_a_certificate(
    plain: AgentServer, secure: AgentServer, mutual: AgentServer
) -> None:
    assert [speaks_tls(one.address) for one in (plain, secure, mutual)] == [False, True, True]
    assert not speaks_tls(Address("127.0.0.1", 1))


def test_no_end_asks_for_a_passphrase_at_the_terminal() -> None:
    tls = Path(__file__).parents[2] / "fixtures/tls"
    locked = Credential(token="let-me-in", cert=tls / "server.pem", key=tls / "locked.key")
    with pytest.raises(UsageError, match="the key is encrypted"):
        locked.client_context()
    with pytest.raises(UsageError, match="the key is encrypted"), serving(credential=locked):
        pass
