"""Bytes that a port has sent and received, whichever driver counts them."""

from dataclasses import dataclass

from kvdiag.derive.rdma import attribute
from kvdiag.model.rdma import Port, PortCounters

_WORD_BYTES = 4
"""PortXmitData and PortRcvData count octets divided by 4 (InfiniBand specification, PortCounters), on every link width:
never multiply by the number of lanes."""
_SENT = ("tx_bytes", "tx_rdma_ucast_bytes")
_RECEIVED = ("rx_bytes", "rx_rdma_ucast_bytes")
"""Plain bytes in hw_counters: bnxt_re, efa, mana; ionic. mlx5 registers none there."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """`source` is the attribute, and the factor where it has one."""

    bytes: int
    source: str


def sent(counters: PortCounters, port: Port) -> Traffic | None:
    """Return the bytes that a port has sent since its driver was loaded, None where nothing counts them."""
    return _traffic(counters, port, "port_xmit_data", _SENT)


def received(counters: PortCounters, port: Port) -> Traffic | None:
    """Return the bytes that a port has received since its driver was loaded, None where nothing counts them."""
    return _traffic(counters, port, "port_rcv_data", _RECEIVED)


def _traffic(counters: PortCounters, port: Port, words: str, plain: tuple[str, ...]) -> Traffic | None:
    for name in (f"{words}_64", words):
        if (value := counters.counters.get(name)) is not None:
            return Traffic(value * _WORD_BYTES, f"{attribute(port, f'counters/{name}')} × {_WORD_BYTES}")
    for name in plain:
        if (value := counters.hw_counters.get(name)) is not None:
            return Traffic(value, attribute(port, f"hw_counters/{name}"))
    return None
