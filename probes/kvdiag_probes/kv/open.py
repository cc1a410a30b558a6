"""Opens the path of a named transport."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from kvdiag.model.probe import ProbeEnds
from kvdiag_probes.control.address import parse_address
from kvdiag_probes.control.credential import load_credential
from kvdiag_probes.kv.path import KvPath


@contextlib.contextmanager
def open_path(transport: str, flags: Mapping[str, Any], size: int) -> Iterator[tuple[KvPath, ProbeEnds | None]]:
    """Yield a path whose ends both have `size` bytes; `flags` are the command's."""
    if transport == "nixl" and flags["peer"] is None:
        from kvdiag_probes.kv.nixl_path import open_nixl

        with open_nixl(size) as nixl_path:
            yield nixl_path, None
        return
    peer = parse_address(flags["peer"], "PEER")
    credential = load_credential(flags["token_file"], flags["tls_cert"], flags["tls_key"], flags["tls_ca"])
    if transport == "nixl":
        from kvdiag_probes.kv.nixl_path import open_nixl_peer

        with open_nixl_peer(peer, credential, flags["timeout"], size) as opened_nixl:
            yield opened_nixl
        return
    if transport == "tcp":
        from kvdiag_probes.kv.tcp_path import open_tcp

        with open_tcp(peer, credential, flags["timeout"], size, size) as opened:
            yield opened
        return
    from kvdiag_probes.kv.rdma_path import open_rdma

    with open_rdma(peer, credential, flags, size) as opened_rdma:
        yield opened_rdma
