"""TLS and basic authentication, in the web-config format of Prometheus's exporters (exporter-toolkit, web.yml)."""

import base64
import binascii
import hashlib
import hmac
import importlib
import secrets
import ssl
import threading
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from kvdiag.errors import InputError, KvdiagError
from kvdiag.sources.certificates import load_authority, load_pair
from kvdiag.sources.config_errors import explain

MOST_REMEMBERED = 100
"""Logins remembered, as bcrypt takes a tenth of a second on purpose, and a scraper comes every few seconds."""

_VERSIONS = {
    "TLS10": ssl.TLSVersion.TLSv1,
    "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
_Version = Literal["TLS10", "TLS11", "TLS12", "TLS13"]
_Hash = Annotated[
    str,
    Meta(
        # A cost of 17 takes ten seconds a login; htpasswd makes no greater one.
        pattern=r"^\$2[aby]\$(0[4-9]|1[0-7])\$[./A-Za-z0-9]{53}$(?!\n)",
        description='the bcrypt hash of a password, of cost 4 to 17: htpasswd -nBC 10 "" prints it',
    ),
]
_HeaderName = Annotated[
    str,
    Meta(
        pattern=r"^(?!(?i:content-(length|type|encoding)|date|server|connection|transfer-encoding|www-authenticate)$)"
        r"[-!#$%&'*+.^_`|~0-9A-Za-z]+$(?!\n)",
        description="the name of a header that the exporter does not set itself",
    ),
]
_HeaderValue = Annotated[str, Meta(pattern=r"^[ -~]*$(?!\n)", description="one line of ASCII characters")]
_NOBODY = "$2b$10$Zb9.9jHPm9GJ7fQ.ONjowuWHZlwrJDTYrLmmiV9MOUJWe22jshubC"
"""Checked for users that there are not: how long an answer takes tells nobody who exists."""


class TlsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`tls_server_config`; paths are relative to the file."""

    cert_file: str
    key_file: str
    client_auth_type: Literal["NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"] = "NoClientCert"
    client_ca_file: str | None = None
    min_version: _Version = "TLS12"
    max_version: _Version = "TLS13"


class HttpConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`http_server_config`; HTTP/1.1 is spoken whatever `http2` says."""

    http2: bool = False
    headers: dict[_HeaderName, _HeaderValue] = {}


class WebConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file; an empty one asks for neither TLS nor a password."""

    tls_server_config: TlsConfig | None = None
    http_server_config: HttpConfig = HttpConfig()
    basic_auth_users: dict[str, _Hash] = {}


class Web:
    """What a server needs of a web-config file: `context` for TLS (None: plain HTTP), `headers`, and `allowed`.

    `tls` are its settings and `base` the folder that their paths are relative to, for what makes its own context.
    """

    def __init__(self, config: WebConfig, context: ssl.SSLContext | None, base: Path = Path()) -> None:
        self.context = context
        self.tls, self.base = config.tls_server_config, base
        self.headers = tuple(config.http_server_config.headers.items())
        self._users = config.basic_auth_users
        self._secret = secrets.token_bytes(32)
        self._remembered: dict[bytes, bool] = {}
        self._lock = threading.Lock()

    def allowed(self, authorization: str) -> bool:
        """Return whether a request with this Authorization header may be answered."""
        if not self._users:
            return True
        scheme, _, encoded = authorization.partition(" ")
        if scheme.lower() != "basic":
            return False
        try:
            user, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return False
        key = hmac.new(self._secret, encoded.encode(), hashlib.sha256).digest()
        known = self._remembered.get(key)
        if known is None:
            known = self._check(user, password)
            with self._lock:
                if len(self._remembered) >= MOST_REMEMBERED:
                    self._remembered.clear()
                self._remembered[key] = known
        return known

    def _check(self, user: str, password: str) -> bool:
        import bcrypt

        hashed = self._users.get(user, _NOBODY)
        # bcrypt looks at 72 bytes; its newer versions refuse more, as the Go toolkit does.
        right = bcrypt.checkpw(password.encode()[:72], hashed.encode())
        return right and user in self._users


def load(path: Path) -> Web:
    """Return what a web-config file asks for; InputError names the file and the field."""
    yaml = _library(path, "yaml", "PyYAML")
    try:
        raw = yaml.safe_load(path.read_text())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not YAML: {' '.join(str(error).split())[:160]}") from None
    try:
        config = msgspec.convert({} if raw is None else raw, WebConfig)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {explain(error, WebConfig)}") from None
    if config.basic_auth_users:
        _library(path, "bcrypt", "bcrypt")
    context = None if config.tls_server_config is None else _context(path, config.tls_server_config)
    return Web(config, context, path.absolute().parent)


def _library(path: Path, name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise KvdiagError(f"{path}: {package} is needed to read it; pip install 'kvdiag[exporter]'") from None


def _context(path: Path, config: TlsConfig) -> ssl.SSLContext:
    base = path.absolute().parent
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if _VERSIONS[config.min_version] > _VERSIONS[config.max_version]:
        raise InputError(
            f"{path}: tls_server_config: min_version {config.min_version} is above max_version {config.max_version}"
        )
    context.minimum_version, context.maximum_version = _VERSIONS[config.min_version], _VERSIONS[config.max_version]
    try:
        load_pair(context, base / config.cert_file, base / config.key_file)
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"{path}: tls_server_config: {config.cert_file}, {config.key_file}: no certificate with its key: {why}"
        ) from None
    if config.client_auth_type != "NoClientCert":
        if config.client_ca_file is None:
            raise InputError(f"{path}: tls_server_config.client_ca_file is needed for {config.client_auth_type}")
        try:
            load_authority(context, base / config.client_ca_file)
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: tls_server_config.client_ca_file: {config.client_ca_file}: {error}") from None
        required = config.client_auth_type == "RequireAndVerifyClientCert"
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context
