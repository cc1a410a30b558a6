import socket
from pathlib import Path

import pytest

from kvdiag.errors import UsageError
from kvdiag_probes.control.address import Address, parse_address, resolve
from kvdiag_probes.control.credential import Credential, check_listen, load_credential


def test_the_token_file_comes_before_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-the-file\n")
    environ = {"KVDIAG_TOKEN": "from-the-environment"}
    assert load_credential(file, None, None, None, environ).token == "from-the-file"
    assert load_credential(None, None, None, None, environ).token == "from-the-environment"
    assert load_credential(None, None, None, None, {}).token is None


@pytest.mark.parametrize("content", [b"", b" \n", b"two words", b"\xff\xfe", b"x" * 5000])
def test_an_unusable_token_file_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=f"--token-file {file}"):
        load_credential(file, None, None, None, {})


def test_missing_files_and_half_pairs_name_their_flag(tmp_path: Path) -> None:
    cert = tmp_path / "cert.pem"
    cert.touch()
    with pytest.raises(UsageError, match=r"--token-file .*No such file"):
        load_credential(tmp_path / "none", None, None, None, {})
    with pytest.raises(UsageError, match=r"--tls-key: .* is not a file"):
        load_credential(None, cert, tmp_path / "none", None, {})
    with pytest.raises(UsageError, match="go together"):
        load_credential(None, cert, None, None, {})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.2", "node7", "127.0.0.1.example.org"])
def test_beyond_loopback_a_credential_is_demanded(host: str) -> None:
    with pytest.raises(UsageError, match=r"--listen: .*no credential"):
        check_listen(host, Credential())
    with pytest.raises(UsageError, match="no credential"):
        check_listen(host, Credential(cert=Path("c"), key=Path("k")))
    check_listen(host, Credential(token="t"))
    check_listen(host, Credential(cert=Path("c"), key=Path("k"), ca=Path("a")))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_needs_none(host: str) -> None:
    check_listen(host, Credential())


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Bearer wrong", "bearer right", "Bearer right ", "right"])
def test_only_the_exact_token_is_accepted(header: str) -> None:
    credential = Credential(token="right")
    assert not credential.accepts(header)
    assert credential.accepts("Bearer right")


def test_a_credential_does_not_print_its_token() -> None:
    assert "right" not in repr(Credential(token="right"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.2:7", Address("10.0.0.2", 7)),
        ("node7", Address("node7", 18580)),
        ("[fd00::2]:7", Address("fd00::2", 7)),
        ("[::1]", Address("::1", 18580)),
        ("h:0", Address("h", 0)),
    ],
)
def test_addresses(text: str, expected: Address) -> None:
    assert parse_address(text, "PEER") == expected


@pytest.mark.parametrize("text", ["", ":7", "h:x", "h:65536", "h:-1", "fd00::2", "[fd00::2", "[::1]7", "a b"])
def test_bad_addresses_are_one_line_that_names_the_flag(text: str) -> None:
    with pytest.raises(UsageError, match=r"^PEER: .*write for example"):
        parse_address(text, "PEER")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("http://h:7", "'http://h:7' is a URL: leave http:// out, write h:7"),
        ("https://h:7/x", "'https://h:7/x' is a URL: leave https:// out; TLS is chosen by --tls-ca, write h:7"),
        ("grpc://", "'grpc://' is a URL: leave grpc:// out, write 10.0.0.2:18580"),
    ],
)
def test_an_address_copied_from_a_browser_gets_a_hint(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(text, "PEER")
    assert str(caught.value) == f"PEER: {said}"


def test_a_name_that_nobody_knows_is_refused_before_anything_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(UsageError, match=r"^--listen: 'foo' is no address and no name known here \(Name or service"):
        resolve(Address("foo", 1), "--listen")
    monkeypatch.undo()
    assert resolve(Address("127.0.0.1", 7), "--listen") == (socket.AF_INET, ("127.0.0.1", 7))
    with pytest.raises(UsageError, match="a name cannot be so"):
        resolve(Address("a" * 300, 1), "--listen")
