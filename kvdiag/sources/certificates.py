"""Loading a certificate with its key, without a question at the terminal."""

import ssl
from pathlib import Path


def load_pair(context: ssl.SSLContext, cert: Path, key: Path | None) -> None:
    """Load a PEM certificate and its key (None: in the same file); OSError or ValueError where they cannot be used.

    The ValueError names the file at fault, which OpenSSL does not. A key with a passphrase is refused: OpenSSL would
    ask for it on the terminal, where nobody may sit.
    """
    try:
        context.load_cert_chain(cert, key, password=_no_passphrase)
    except ssl.SSLError as error:
        raise ValueError(_why(cert, key or cert, error)) from error


def load_authority(context: ssl.SSLContext, path: Path) -> None:
    """Trust the PEM certificates of a file; OSError or a ValueError that names the file where there are none."""
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise ValueError(f"{path} holds no PEM certificate that can be read") from error


def _why(cert: Path, key: Path, error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"the key {key} does not belong to the certificate {cert}: give the one that it was issued for"
    for path, mark in ((cert, b"CERTIFICATE-----"), (key, b"PRIVATE KEY-----")):
        if mark not in path.read_bytes():
            what = "certificate" if mark.startswith(b"CERT") else "private key"
            return f"{path} holds no PEM {what} (no line -----BEGIN … {mark.decode()})"
    return f"{cert} and {key}: {(error.reason or str(error)).replace('_', ' ').lower()}: one of the two is damaged"


def _no_passphrase() -> str:
    raise ValueError("the key is encrypted; take its passphrase off (openssl pkey)")
