"""What went wrong between two ends of which one or both use TLS, in words that say whose file to change."""

import socket
import ssl

from kvdiag_probes.control.address import Address
from kvdiag_probes.control.credential import Credential

_PLAIN_REASONS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "HTTP_REQUEST", "PACKET_LENGTH")
_DEMANDS = ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE", "BAD_CERTIFICATE")
_DISTRUSTS = ("UNKNOWN_CA", "CERTIFICATE_UNKNOWN", "CERTIFICATE_EXPIRED", "DECRYPT_ERROR")
_LOOK_S = 1.0


def explain(error: ssl.SSLError, credential: Credential) -> str:
    """Return why TLS with an agent failed, naming the file that the probe was given, and what to do."""
    reason = (error.reason or "").upper()
    if isinstance(error, ssl.SSLCertVerificationError):
        return _untrusted(error.verify_message or str(error), credential)
    if any(text in reason for text in _PLAIN_REASONS):
        flag = "--tls-ca" if credential.ca else "--tls-cert and --tls-key"
        return (
            f"it does not speak TLS, and {flag} makes the probe do so: leave that out, or start the agent with "
            "--tls-cert and --tls-key"
        )
    if any(text in reason for text in _DISTRUSTS) and credential.cert:
        return (
            f"it does not trust the certificate of --tls-cert {credential.cert} ({_words(reason)}): give one that the "
            "authority of the agent's own --tls-ca has signed"
        )
    if any(text in reason for text in (*_DEMANDS, *_DISTRUSTS)):
        return f"it demands a client certificate ({_words(reason)}): give --tls-cert and --tls-key"
    return f"TLS failed: {_words(reason) or error}; are the files of --tls-ca, --tls-cert and --tls-key the right ones?"


def cut_off(credential: Credential) -> str:
    """Return why an agent ended the connection after the greeting: of a refused certificate it says nothing."""
    if credential.cert:
        return (
            f"it ended the connection right after the TLS greeting: it does not trust the certificate of --tls-cert "
            f"{credential.cert}; give one that the authority of the agent's own --tls-ca has signed (its log says why)"
        )
    return (
        "it ended the connection right after the TLS greeting: it demands a client certificate; give --tls-cert and "
        "--tls-key (its log says why)"
    )


def speaks_tls(peer: Address) -> bool:
    """Whether a server answers a TLS greeting with TLS, whatever its certificate is; False where it does not say."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((peer.host, peer.port), _LOOK_S) as connection,
            context.wrap_socket(connection) as wrapped,
        ):
            return wrapped.version() is not None
    except OSError:
        return False


def _untrusted(why: str, credential: Credential) -> str:
    authority = f"--tls-ca {credential.ca}" if credential.ca else "the system's authorities (no --tls-ca was given)"
    if "Hostname mismatch" in why or "IP address mismatch" in why:
        return (
            f"the agent's certificate is for another name ({why.rstrip('.')}): write PEER as the certificate names it, "
            "or issue one with this subjectAltName"
        )
    if "expired" in why or "not yet valid" in why:
        return f"the agent's certificate cannot be used ({why}): issue a new one, and check both clocks"
    return (
        f"the agent's certificate is not signed by {authority} ({why}): give as --tls-ca the authority that signed the "
        "agent's --tls-cert"
    )


def _words(reason: str) -> str:
    return (
        reason.removeprefix("TLSV1_ALERT_")
        .removeprefix("TLSV13_ALERT_")
        .removeprefix("SSLV3_ALERT_")
        .replace("_", " ")
        .lower()
    )
