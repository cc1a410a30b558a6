"""Who may use the control channel: a shared token, TLS, mutual TLS; and where an agent may listen without one."""

import hmac
import ipaddress
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kvdiag.errors import UsageError
from kvdiag.sources.certificates import load_authority, load_pair

TOKEN_VARIABLE = "KVDIAG_TOKEN"  # noqa: S105
_MAX_TOKEN_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """What one end presents and demands. `ca` at the agent demands a client certificate (mutual TLS)."""

    token: str | None = field(default=None, repr=False)
    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None

    @property
    def tls(self) -> bool:
        return self.cert is not None or self.ca is not None

    @property
    def proves_the_client(self) -> bool:
        """Whether an agent that holds this knows who is asking."""
        return self.token is not None or (self.cert is not None and self.ca is not None)

    @property
    def demanded_of_clients(self) -> Literal["none", "token", "tls", "token+tls"]:
        """What an agent that holds this demands of a probe."""
        mutual = self.cert is not None and self.ca is not None
        if self.token is not None:
            return "token+tls" if mutual else "token"
        return "tls" if mutual else "none"

    def accepts(self, authorization: str) -> bool:
        """Whether an Authorization header shows the token, compared in constant time; true where none is demanded."""
        if self.token is None:
            return True
        return hmac.compare_digest(authorization.encode(), f"Bearer {self.token}".encode())

    def client_context(self) -> ssl.SSLContext:
        """Return the initiator's TLS context; UsageError where a file cannot be used."""
        try:
            if self.ca:
                load_authority(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), self.ca)
            context = ssl.create_default_context(cafile=str(self.ca) if self.ca else None)
            if self.cert:
                load_pair(context, self.cert, self.key)
        except (OSError, ValueError) as error:
            raise UsageError(f"--tls-cert/--tls-key/--tls-ca: {error}") from error
        return context


def load_credential(
    token_file: Path | None,
    cert: Path | None,
    key: Path | None,
    ca: Path | None,
    environ: Mapping[str, str] = os.environ,
) -> Credential:
    """Read the token (file first, then KVDIAG_TOKEN) and check the TLS files; UsageError names the flag."""
    for flag, path in (("--tls-cert", cert), ("--tls-key", key), ("--tls-ca", ca)):
        if path is not None and not path.is_file():
            raise UsageError(f"{flag}: {path} is not a file")
    if (cert is None) != (key is None):
        raise UsageError("--tls-cert and --tls-key go together: give both or neither")
    return Credential(token=_token(token_file, environ), cert=cert, key=key, ca=ca)


def check_listen(host: str, credential: Credential) -> None:
    """Raise UsageError where an agent would listen beyond loopback without knowing who is asking."""
    if credential.proves_the_client or _is_loopback(host):
        return
    raise UsageError(
        f"--listen: {host} can be reached from other hosts, and there is no credential: give --token-file (or "
        f"{TOKEN_VARIABLE}) or --tls-cert, --tls-key and --tls-ca, or listen on 127.0.0.1"
    )


def _token(token_file: Path | None, environ: Mapping[str, str]) -> str | None:
    if token_file is None:
        where, text = TOKEN_VARIABLE, environ.get(TOKEN_VARIABLE)
        if text is None:
            return None
    else:
        where = f"--token-file {token_file}"
        try:
            with token_file.open(encoding="ascii") as file:
                text = file.read(_MAX_TOKEN_BYTES + 1)
        except (OSError, ValueError) as error:
            raise UsageError(f"{where}: cannot be read as text: {getattr(error, 'strerror', None) or error}") from error
    token = text.strip()
    if not token or len(token) > _MAX_TOKEN_BYTES or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(f"{where}: must hold one printable word; make one with: openssl rand -hex 32")
    return token


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
