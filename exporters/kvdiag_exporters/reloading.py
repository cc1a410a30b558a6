"""Whether a new configuration can be gone on with, found out while the present one still serves."""

import socket
from dataclasses import dataclass
from pathlib import Path

from kvdiag.errors import InputError, KvdiagError, UnavailableError
from kvdiag_exporters.bundle_folder import BundleFolder
from kvdiag_exporters.config import Config, split_listen
from kvdiag_exporters.records.settings import otlp_address
from kvdiag_exporters.web_config import load as load_web


@dataclass(slots=True)
class Reloads:
    """Whether the last reload was `successful`, and when the configuration was last taken up (epoch seconds)."""

    successful: bool = True
    time_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """What the present configuration holds: its ports, and the folder that it records into."""

    config: Config
    ports: frozenset[int]


def check(found: Config, running: Running, file: Path | None, listen_from: str | None = None) -> None:
    """Raise the error of what would keep `found` from being served; errors name `file`, or whence the address is.

    Ports that are held already are taken for free: they will be by then.
    """
    if found.web_config is not None:
        load_web(Path(found.web_config))
    where = "" if file is None else f"{file}: "
    try:
        _check_port(listen_from or f"{where}listen", *split_listen(found.listen), running.ports)
        if found.records is not None:
            from kvdiag_exporters.records.service import require_packages

            require_packages(found.records)
            if found.records.web_config is not None:
                web = load_web(Path(found.records.web_config))
                if found.records.otlp_grpc is not None:
                    from kvdiag_exporters.records.otlp_grpc import check_web

                    check_web(web)
            for field in ("otlp_http", "otlp_grpc"):
                address = getattr(found.records, field)
                if address is not None:
                    _check_port(f"{where}records.{field}", *otlp_address(field, address), running.ports)
    except OSError as error:
        raise UnavailableError(f"{where}{error.strerror or error}") from None
    if found.recorder is not None:
        _check_recorder(found, running, where)


def _check_port(field: str, host: str, port: int, held: frozenset[int]) -> None:
    if port == 0 or port in held:
        return
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[:1]:
            with socket.socket(family, kind, protocol) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind(address)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UnavailableError(f"{field}: cannot listen on {host}:{port}: {why}; choose another address") from None


def _check_recorder(found: Config, running: Running, where: str) -> None:
    """Try to make and to lock a folder that is not recorded into already."""
    assert found.recorder is not None
    path = Path(found.recorder.path)
    present = running.config.recorder
    try:
        if found.recorder.rotate_s is not None:
            path.mkdir(parents=True, exist_ok=True)
        elif present is None or present.rotate_s is not None or Path(present.path) != path:
            BundleFolder(path).close()
    except OSError as error:
        raise InputError(f"{where}recorder.path: {error.filename or path}: {error.strerror}") from None
    except KvdiagError as error:
        raise type(error)(f"{where}recorder.path: {error}") from None
