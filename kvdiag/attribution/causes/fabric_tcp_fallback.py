"""fabric.tcp_fallback: transfers that used RDMA go through the kernel's TCP."""

import numpy as np

from kvdiag.attribution.causes.base import Cause, Dose, Floats, positive, rate_evidence
from kvdiag.attribution.frame import Frame
from kvdiag.model.missing import Missing

LEAST_SHARE = 0.05
"""Other TCP traffic of a node stays below a twentieth of its RDMA bytes; above it, KV bytes are among it."""


def dose(frame: Frame) -> Dose | Missing:
    """Return baseline transfer seconds times the share of the decode node's received bytes that came over TCP."""
    size = frame.number("bytes")
    if size is None:
        return Missing("requests have no bytes column")
    share = tcp_share(frame)
    if share is None:
        return Missing("host.tcp_rx_bytes was not recorded at the decode nodes")
    received = {rate.node: rate.incident for rate in frame.rates("nic.rx_bytes").values()}
    moved = [
        rate
        for rate in frame.rates("host.tcp_rx_bytes").values()
        if rate.node in frame.node_names("decode")
        and rate.incident - rate.base > LEAST_SHARE * max(received.get(rate.node, 0.0), rate.base)
    ]
    return Dose(
        columns=(size * frame.seconds_per_byte() * share,),
        ceilings=(np.inf,),
        moved=bool(moved),
        evidence=rate_evidence("host.tcp_rx_bytes", moved, "B/s", f"+ {LEAST_SHARE:.0%} of the node's NIC bytes"),
    )


def tcp_share(frame: Frame) -> Floats | None:
    """Return the share of the bytes around each request's transfer that came over TCP beyond what is usual."""
    tcp, rdma = frame.around("host.tcp_rx_bytes", "decode"), frame.around("nic.rx_bytes", "decode")
    if tcp is None:
        return None
    extra = positive(tcp - frame.reference("host.tcp_rx_bytes", "decode", "base_high"))
    other = np.zeros(frame.rows) if rdma is None else positive(rdma)
    share = extra / np.maximum(extra + other, 1.0)
    return np.where(share > LEAST_SHARE, share, 0.0)


CAUSE = Cause(
    id="fabric.tcp_fallback",
    stages=("pull_wait_s", "post_s", "wire_s"),
    side="decode",
    dose=dose,
    action="see why the transport chose TCP on the nodes named: UCX_TLS and UCX_NET_DEVICES, RDMA device visible in "
    "the container, uverbs permissions, memlock; `kvdiag preflight` there names the reason",
)
