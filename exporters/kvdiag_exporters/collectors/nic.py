"""RDMA ports: state, speed, traffic, and the events that every driver counts under a name of its own."""

from collections.abc import Iterator
from typing import NamedTuple

from kvdiag.model.missing import Missing
from kvdiag.model.rdma import Port, PortCounters
from kvdiag.sources import rdma_counters, rdma_sysfs
from kvdiag_exporters.catalog import Metric, Recorded, Sample
from kvdiag_exporters.collectors.base import Setup

_LABELS = ("node", "device", "port")


def _counter(name: str, help_: str, unit: str = "", recorded: str = "", recorded_unit: str = "count") -> Metric:
    return Metric(
        name=name,
        kind="counter",
        unit=unit,
        labels=_LABELS,
        help=help_,
        recorded=(Recorded(name=recorded, unit=recorded_unit),) if recorded else (),
    )


UP = Metric(
    name="kvdiag_rdma_port_up", kind="gauge", labels=_LABELS, help="1 where the RDMA port's state is ACTIVE, else 0."
)
SPEED = Metric(
    name="kvdiag_rdma_port_speed_bytes_per_second",
    kind="gauge",
    labels=_LABELS,
    help="Negotiated rate of the RDMA port.",
    recorded=(Recorded(name="nic.link_gbps", unit="Gbit/s", scale=8e-9),),
)


class _Counted(NamedTuple):
    """A counter, and where it is read: the first name present wins; (name, factor to the metric's unit)."""

    metric: Metric
    pma: tuple[tuple[str, int], ...] = ()
    hw: tuple[str, ...] = ()


# PMA counts data in octets divided by 4 (InfiniBand specification, PortXmitData), a word of 4 bytes.
# hw_counters names by driver: mlx5, bnxt_re, irdma, efa, mana, rxe; each kernel driver's own spelling.
_COUNTED = (
    _Counted(
        _counter("kvdiag_rdma_port_transmit_bytes_total", "Bytes sent.", "bytes", "nic.tx_bytes", "B"),
        pma=(("port_xmit_data", 4),),
        hw=("tx_bytes",),
    ),
    _Counted(
        _counter("kvdiag_rdma_port_receive_bytes_total", "Bytes received.", "bytes", "nic.rx_bytes", "B"),
        pma=(("port_rcv_data", 4),),
        hw=("rx_bytes",),
    ),
    _Counted(
        _counter("kvdiag_rdma_port_transmit_packets_total", "Packets sent."),
        pma=(("port_xmit_packets", 1),),
        hw=("tx_pkts", "tx_packets", "sent_pkts"),
    ),
    _Counted(
        _counter("kvdiag_rdma_port_receive_packets_total", "Packets received."),
        pma=(("port_rcv_packets", 1),),
        hw=("rx_pkts", "rx_packets", "rcvd_pkts"),
    ),
    _Counted(
        _counter("kvdiag_rdma_port_transmit_discards_total", "Packets that the port could not send and discarded."),
        pma=(("port_xmit_discards", 1),),
    ),
    _Counted(
        _counter("kvdiag_rdma_port_transmit_wait_ticks_total", "Ticks with data to send and no credit to send it."),
        pma=(("port_xmit_wait", 1),),
    ),
    _Counted(
        _counter("kvdiag_rdma_port_symbol_errors_total", "Symbol errors on the link.", "", "nic.symbol_errors"),
        pma=(("symbol_error", 1),),
    ),
    _Counted(
        _counter("kvdiag_rdma_port_link_downed_total", "Times the link failed to recover and went down."),
        pma=(("link_downed", 1),),
        hw=("link_downed",),
    ),
    _Counted(
        _counter("kvdiag_rdma_port_retransmits_total", "Retransmissions by the requester.", recorded="nic.retransmits"),
        hw=("roce_adp_retrans", "to_retransmits", "retrans_pkts", "RetransSegs", "completer_retry_err"),
    ),
    _Counted(
        _counter(
            "kvdiag_rdma_port_ack_timeouts_total", "Acknowledgement timers that ran out.", recorded="nic.ack_timeouts"
        ),
        hw=("local_ack_timeout_err", "requester_timeout", "retrans_timeout_events"),
    ),
    _Counted(
        _counter(
            "kvdiag_rdma_port_out_of_sequence_total",
            "Packets that the responder received out of sequence.",
            recorded="nic.out_of_sequence",
        ),
        hw=("out_of_sequence", "oos_drop_count", "responder_oos", "out_of_seq_request", "Nak Sequence Error"),
    ),
    _Counted(
        _counter("kvdiag_rdma_port_sequence_naks_total", "Sequence-error NAKs that the requester received."),
        hw=("packet_seq_err", "seq_err_naks_rcvd", "requester_oos_nak", "rcvd_seq_err"),
    ),
    _Counted(
        _counter("kvdiag_rdma_port_rnr_naks_total", "Receiver-not-ready NAKs that the requester received."),
        hw=("rnr_nak_retry_err", "rnr_naks_rcvd", "requester_rnr_nak", "rcvd_rnr_err"),
    ),
    _Counted(
        _counter(
            "kvdiag_rdma_port_cnp_handled_total", "Congestion notifications received and acted on.", "", "nic.cnp"
        ),
        hw=("rp_cnp_handled", "rx_cnp_pkts", "cnpHandled", "received_cnps"),
    ),
    _Counted(
        _counter("kvdiag_rdma_port_cnp_sent_total", "Congestion notifications sent."),
        hw=("np_cnp_sent", "tx_cnp_pkts", "cnpSent", "sent_cnps"),
    ),
    _Counted(
        _counter(
            "kvdiag_rdma_port_ecn_marked_packets_total",
            "RoCE packets received with the congestion mark.",
            recorded="nic.ecn_marked",
        ),
        hw=("np_ecn_marked_roce_packets", "rx_ecn_marked_pkts", "RxECNMrkd", "received_ecns"),
    ),
    _Counted(
        _counter(
            "kvdiag_rdma_port_remote_access_errors_total", "Requests that the far end refused: key, range or right."
        ),
        hw=("req_remote_access_errors", "remote_access_err", "nak_access_error"),
    ),
)

METRICS = (UP, SPEED, *(one.metric for one in _COUNTED))


class NicCollector:
    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.missing: tuple[str, ...] = ()

    def collect(self) -> Iterator[Sample]:
        """Yield the state and the counters of every port; a host without RDMA has none."""
        missing = []
        for part in (rdma_sysfs.SOURCE.read(self._setup.context), rdma_counters.SOURCE.read(self._setup.context)):
            if isinstance(part, Missing):
                missing.append(part.missing)
                continue
            for port in part.ports:
                yield from self._state(port) if isinstance(port, Port) else self._counters(port)
        self.missing = tuple(missing)

    def _state(self, port: Port) -> Iterator[Sample]:
        labels = (self._setup.node, port.device, str(port.number))
        if not isinstance(port.state, Missing):
            yield UP.sample(float(port.state == "ACTIVE"), *labels)
        if not isinstance(port.rate_gbps, Missing):
            yield SPEED.sample(port.rate_gbps * 1e9 / 8, *labels)

    def _counters(self, port: PortCounters) -> Iterator[Sample]:
        labels = (self._setup.node, port.device, str(port.port))
        for metric, pma, hw in _COUNTED:
            values = [port.counters[name] * factor for name, factor in pma if name in port.counters]
            values += [port.hw_counters[name] for name in hw if name in port.hw_counters]
            if values:
                yield metric.sample(float(values[0]), *labels)


def create(setup: Setup) -> NicCollector:
    return NicCollector(setup)
