"""Which file of TLS cannot be used."""

import ssl
from pathlib import Path

import pytest

from kvdiag.sources.certificates import load_authority, load_pair

TLS = Path(__file__).parents[1] / "fixtures/tls"


def context() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)


def test_a_key_of_another_certificate_is_called_so() -> None:
    with pytest.raises(ValueError, match=r"the key .*client\.key does not belong to the certificate .*server\.pem"):
        load_pair(context(), TLS / "server.pem", TLS / "client.key")


def test_the_file_that_is_no_certificate_or_no_key_is_named(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("let-me-in\n")
    with pytest.raises(ValueError, match=r"token holds no PEM certificate"):
        load_pair(context(), token, token)
    with pytest.raises(ValueError, match=r"token holds no PEM private key"):
        load_pair(context(), TLS / "server.pem", token)
    with pytest.raises(ValueError, match=r"server\.pem holds no PEM private key"):
        load_pair(context(), TLS / "server.pem", None)
    with pytest.raises(ValueError, match=r"token holds no PEM certificate"):
        load_authority(context(), token)


def test_a_damaged_pair_and_an_absent_file_are_told(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.pem"
    damaged.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    with pytest.raises(ValueError, match=r"damaged\.pem and .*server\.key: .*: one of the two is damaged"):
        load_pair(context(), damaged, TLS / "server.key")
    with pytest.raises(FileNotFoundError):
        load_pair(context(), tmp_path / "none.pem", TLS / "server.key")
