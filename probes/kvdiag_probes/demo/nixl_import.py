"""Find NIXL, whichever of its wheels is installed, and set the environment it needs on a machine without a GPU."""

import importlib
import importlib.util
import os
from pathlib import Path
from typing import Any

from kvdiag.errors import UndeterminedError
from kvdiag.model.missing import Missing

_PACKAGES = ("nixl_cu12", "nixl_cu13", "nixl")


def find() -> str | Missing:
    """Return the name of the installed NIXL package, or why there is none."""
    for package in _PACKAGES:
        if importlib.util.find_spec(package) is not None:
            return package
    return Missing("NIXL is not installed (pip install --no-deps nixl-cu12==1.5.1)")


def api() -> Any:
    """Import and return NIXL's Python API; UndeterminedError where it is not installed or does not load here."""
    package = find()
    if isinstance(package, Missing):
        raise UndeterminedError(package.missing)
    try:
        return importlib.import_module(f"{package}._api")
    except ImportError as error:
        raise UndeterminedError(f"NIXL is installed but does not load: {error}; --transport tcp needs none") from error


def pin(tls: str, device: str) -> None:
    """Have the agents that are created from now on use these transports of UCX over this device alone."""
    os.environ.update(UCX_TLS=tls, UCX_NET_DEVICES=device)


def set_environment(tls: str, device: str, telemetry: Path, telemetry_port: int) -> None:
    """Pin UCX to transports (tcp, rc) over one interface or RDMA port, and turn NIXL's cumulative telemetry store on.

    UCX left alone takes any interface, and between two local processes copies through memory; its EFA module crashes
    at exit where Debian's ibverbs-providers is installed. The store is served on a port too: kept on loopback.
    """
    pin(tls, device)
    os.environ.update(
        UCX_MODULES="^efa",
        NIXL_LOG_LEVEL="WARN",
        NIXL_TELEMETRY_ENABLE="y",
        NIXL_TELEMETRY_EXPORTER="prometheus_mp",
        NIXL_TELEMETRY_MULTIPROC_DIR=str(telemetry),
        NIXL_TELEMETRY_PROMETHEUS_LOCAL="y",
        NIXL_TELEMETRY_PROMETHEUS_PORT=str(telemetry_port),
    )
