"""Loading a certificate with its key, without a question at the terminal."""

import ssl
from pathlib import Path


def load_pair(context: ssl.SSLContext, cert: Path, key: Path | None) -> None:
    """Load a PEM certificate and its key (None: in the same file); OSError or ValueError where they cannot be used.

    A key with a passphrase is refused: OpenSSL would ask for it on the terminal, where nobody may sit.
    """
    context.load_cert_chain(cert, key, password=_no_passphrase)


def _no_passphrase() -> str:
    raise ValueError("the key is encrypted; take its passphrase off (openssl pkey)")
