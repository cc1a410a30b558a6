"""One meaning for the counters of every RDMA driver: which of its own names each canonical metric is read from.

Names are those of the kernel drivers mlx5, bnxt_re, irdma, efa, mana, ionic and rxe (siw has none), in their spelling;
the first that is present wins. PMA counters (`counters/`) come before the driver's own (`hw_counters/`).
"""

import fnmatch
from functools import cache
from typing import NamedTuple

from kvdiag_exporters.catalog import Metric, Recorded

LABELS = ("node", "device", "port")


class Counted(NamedTuple):
    """A canonical counter: (PMA name, factor to the metric's unit), then the drivers' names."""

    metric: Metric
    pma: tuple[tuple[str, int], ...] = ()
    hw: tuple[str, ...] = ()


def _counter(name: str, help_: str, unit: str = "", recorded: str = "", recorded_unit: str = "count") -> Metric:
    return Metric(
        name=f"kvdiag_rdma_port_{name}_total",
        kind="counter",
        unit=unit,
        labels=LABELS,
        help=help_,
        recorded=(Recorded(name=recorded, unit=recorded_unit),) if recorded else (),
    )


# PMA counts data in octets divided by 4 (InfiniBand specification, PortXmitData), a word of 4 bytes on any link width.
TRANSMIT = Counted(
    _counter("transmit_bytes", "Bytes sent.", "bytes", "nic.tx_bytes", "B"),
    pma=(("port_xmit_data_64", 4), ("port_xmit_data", 4)),
    hw=("tx_bytes", "tx_rdma_ucast_bytes"),
)
RECEIVE = Counted(
    _counter("receive_bytes", "Bytes received.", "bytes", "nic.rx_bytes", "B"),
    pma=(("port_rcv_data_64", 4), ("port_rcv_data", 4)),
    hw=("rx_bytes", "rx_rdma_ucast_bytes"),
)

COUNTED = (
    TRANSMIT,
    RECEIVE,
    Counted(
        _counter("transmit_packets", "Packets sent."),
        pma=(("port_xmit_packets_64", 1), ("port_xmit_packets", 1)),
        hw=("tx_pkts", "tx_packets", "sent_pkts", "tx_rdma_ucast_pkts"),
    ),
    Counted(
        _counter("receive_packets", "Packets received."),
        pma=(("port_rcv_packets_64", 1), ("port_rcv_packets", 1)),
        hw=("rx_pkts", "rx_packets", "rcvd_pkts", "rx_rdma_ucast_pkts"),
    ),
    Counted(
        _counter("transmit_discards", "Packets that the port could not send and discarded."),
        pma=(("port_xmit_discards", 1),),
        hw=("tx_roce_discards",),
    ),
    Counted(
        _counter("receive_discards", "Packets received and dropped by the card."),
        hw=("rx_roce_discards", "rx_drops"),
    ),
    Counted(
        _counter("receive_errors", "Packets received with an error."),
        pma=(("port_rcv_errors", 1),),
        hw=("rx_roce_errors", "req_rx_inval_pkts"),
    ),
    Counted(
        _counter("transmit_wait_ticks", "Ticks with data to send and no credit to send it."),
        pma=(("port_xmit_wait", 1),),
    ),
    Counted(
        _counter("symbol_errors", "Symbol errors on the link.", "", "nic.symbol_errors"), pma=(("symbol_error", 1),)
    ),
    Counted(_counter("link_recoveries", "Times the link recovered from an error."), pma=(("link_error_recovery", 1),)),
    Counted(
        _counter("link_downed", "Times the link failed to recover and went down."),
        pma=(("link_downed", 1),),
        hw=("link_downed",),
    ),
    Counted(
        _counter("retransmits", "Retransmissions by the requester.", recorded="nic.retransmits"),
        hw=(
            "roce_adp_retrans", "to_retransmits", "retrans_pkts", "tx_rdma_retx_pkts", "RetransSegs", "tcpRetransSegs",
            "completer_retry_err",
        ),
    ),
    Counted(
        _counter("ack_timeouts", "Acknowledgement timers that ran out.", recorded="nic.ack_timeouts"),
        hw=("local_ack_timeout_err", "requester_timeout", "tx_rdma_ack_timeout", "retrans_timeout_events"),
    ),
    Counted(
        _counter("retries_exceeded", "Requests given up because every retry failed: the queue pair is in error."),
        hw=("max_retry_exceeded", "requester_retries_exceeded", "req_tx_retry_excd_err", "retry_exceeded_err"),
    ),
    Counted(
        _counter(
            "out_of_sequence", "Packets that the responder received out of sequence.", recorded="nic.out_of_sequence"
        ),
        hw=(
            "out_of_sequence", "oos_drop_count", "responder_oos", "resp_rx_outouf_seq", "out_of_seq_request",
            "Nak Sequence Error",
        ),
    ),
    Counted(
        _counter("sequence_naks", "Sequence-error NAKs that the requester received."),
        hw=("packet_seq_err", "seq_err_naks_rcvd", "requester_oos_nak", "req_rx_pkt_seq_err", "rcvd_seq_err"),
    ),
    Counted(
        _counter("duplicate_requests", "Requests that the responder had seen before: their answer was lost or late."),
        hw=("duplicate_request", "dup_req", "responder_dup_request", "resp_rx_dup_request", "dup_rx_requests"),
    ),
    Counted(
        _counter("rnr_naks", "Receiver-not-ready NAKs that the requester received."),
        hw=("rnr_nak_retry_err", "rnr_naks_rcvd", "requester_rnr_nak", "req_rx_rnr_retry_err", "rcvd_rnr_err"),
    ),
    Counted(
        _counter("rnr_retries_exceeded", "Requests given up because the receiver was never ready."),
        hw=("requester_rnr_nak_retries_exceeded", "retry_rnr_exceeded_err"),
    ),
    Counted(
        _counter("receiver_not_ready", "Requests that found no receive buffer here, or that were refused for it."),
        hw=(
            "out_of_buffer", "rx_out_of_buffer", "responder_rnr_nak", "resp_rx_outof_buf", "resp_tx_rnr_retry_err",
            "RNR sent", "send_rnr_err",
        ),
    ),
    Counted(
        _counter("cnp_handled", "Congestion notifications received and acted on.", "", "nic.cnp"),
        hw=("rp_cnp_handled", "rx_cnp_pkts", "cnpHandled", "rx_rdma_cnp_pkts", "received_cnps"),
    ),
    Counted(
        _counter("cnp_ignored", "Congestion notifications received and not acted on."),
        hw=("rp_cnp_ignored", "cnpIgnored"),
    ),
    Counted(
        _counter("cnp_sent", "Congestion notifications sent."),
        hw=("np_cnp_sent", "tx_cnp_pkts", "cnpSent", "tx_rdma_cnp_pkts", "sent_cnps"),
    ),
    Counted(
        _counter(
            "ecn_marked_packets", "RoCE packets received with the congestion mark.", recorded="nic.ecn_marked"
        ),
        hw=("np_ecn_marked_roce_packets", "rx_ecn_marked_pkts", "RxECNMrkd", "rx_rdma_ecn_pkts", "received_ecns"),
    ),
    Counted(
        _counter("remote_access_errors", "Requests that the far end refused: key, range or right."),
        hw=("req_remote_access_errors", "remote_access_err", "nak_access_error", "req_rx_rmt_acc_err"),
    ),
    Counted(
        _counter("local_protection_errors", "Work requests with a local key, range or right that is wrong."),
        hw=("local_protection_err", "requestor_local_prot_error", "req_tx_loc_acc_err"),
    ),
    Counted(
        _counter("completion_errors", "Completions of the requester with an error."),
        hw=("req_cqe_error", "req_rx_cqe_err", "unrecoverable_err", "send_err"),
    ),
    Counted(
        _counter("flushed_completions", "Requests flushed because their queue pair was in error."),
        hw=("req_cqe_flush_error", "req_rx_cqe_flush"),
    ),
    Counted(
        _counter("unresponsive_remotes", "Times a far end was given up as unresponsive."),
        hw=("unresponsive_remote_events",),
    ),
)  # fmt: skip

OPERATION_BYTES = Metric(
    name="kvdiag_rdma_port_operation_bytes_total",
    kind="counter",
    unit="bytes",
    labels=(*LABELS, "operation"),
    help="Bytes by operation where the driver tells them apart; read_served and write_received are the passive side's.",
)
OPERATIONS = {
    "rdma_read_bytes": "read",
    "rdma_read_resp_bytes": "read_served",
    "rdma_write_bytes": "write",
    "rdma_write_recv_bytes": "write_received",
    "send_bytes": "send",
    "recv_bytes": "receive",
}
"""EFA's names. READ and WRITE leave no trace in the passive side's software; these are the only sign of them there."""

_SETTINGS = ("lifespan",)
_LEVELS = (
    "active_*", "watermark_*", "current_rate", "num_qps_*", "db_fifo_register", "pacing_reschedule", "*_in_use",
)  # fmt: skip


@cache
def kind_of(name: str) -> str:
    """Return what an attribute of hw_counters is: counter, level (it goes up and down) or setting."""
    if name in _SETTINGS:
        return "setting"
    return "level" if any(fnmatch.fnmatchcase(name, pattern) for pattern in _LEVELS) else "counter"
