"""Recording rules: levels that several alerts and panels share."""

from dashboards.alerting.base import Recording

_WIRE = 'kvdiag_transfer_stage_seconds_{part}{{stage=~"wire|transfer"}}'
_PAIR = ("prefill_node", "decode_node")
_ENGINE = ("job", "node", "engine", "source", "kind")
_PORT = ("job", "instance", "node", "device", "port")

PAIR_P99 = "pair:kvdiag_transfer_seconds:p99_5m"
PAIR_BASELINE = "pair:kvdiag_transfer_seconds:p99_5m_median_1d"
ENGINE_P99 = "engine:kvdiag_transfer_seconds:p99_5m"
ENGINE_BASELINE = "engine:kvdiag_transfer_seconds:p99_5m_median_1d"
PAIR_RATE = "pair:kvdiag_transfers:rate5m"
FAILURE_RATIO = "engine:kvdiag_transfer_failures:ratio10m"
FAILURES = "engine:kvdiag_transfer_failures:increase10m"
PORT_BYTES = "port:kvdiag_rdma_bytes:rate5m"
RAIL_BYTES = "port:kvdiag_rdma_rail_bytes:rate5m"
RETRANSMIT_RATIO = "port:kvdiag_rdma_retransmits:ratio5m"
TROUBLE = "port:kvdiag_rdma_trouble:rate5m"


def _median_of_a_day(record: str) -> str:
    """Return the day's median without the last half hour: a trouble is not its own measure. An hour is the least."""
    return f"quantile_over_time(0.5, {record}[1d] offset 30m) and count_over_time({record}[1d] offset 30m) >= 60"


def _port_rate(counter: str) -> str:
    return f"sum by (job, instance, node, device, port) (rate(kvdiag_rdma_port_{counter}_total[5m]))"


_TROUBLES = ("retransmits", "ack_timeouts", "sequence_naks")
"""What tells of a path that loses packets; a driver counts some of them, none all."""
_ANY_TROUBLE = " or ".join(_port_rate(one) for one in _TROUBLES)

RECORDINGS = (
    Recording(
        name=PAIR_RATE,
        expr=f"sum by (prefill_node, decode_node) (rate({_WIRE.format(part='count')}[5m]))",
        labels=_PAIR,
    ),
    # Fewer than three transfers a minute make no quantile.
    Recording(
        name=PAIR_P99,
        expr=(
            "histogram_quantile(0.99, sum by (prefill_node, decode_node, le) "
            f"(rate({_WIRE.format(part='bucket')}[5m]))) and {PAIR_RATE} > 0.05"
        ),
        labels=_PAIR,
    ),
    Recording(name=PAIR_BASELINE, expr=_median_of_a_day(PAIR_P99), labels=_PAIR),
    # For those who have no records: the engines' own histograms, which name no peer.
    Recording(
        name=ENGINE_P99,
        expr=(
            "histogram_quantile(0.99, sum by (job, node, engine, source, kind, le) "
            "(rate(kvdiag_engine_transfer_seconds_bucket[5m]))) and sum by (job, node, engine, source, kind) "
            "(rate(kvdiag_engine_transfer_seconds_count[5m])) > 0.05"
        ),
        labels=_ENGINE,
    ),
    Recording(name=ENGINE_BASELINE, expr=_median_of_a_day(ENGINE_P99), labels=_ENGINE),
    Recording(
        name=FAILURES,
        # What was tried again or taken back is no failure of a transfer.
        expr=(
            "sum by (job, node, engine) (increase(kvdiag_engine_transfer_failures_total"
            '{kind!~"prefill_retry|session_recovery|.*cancel.*"}[10m]))'
        ),
        labels=("job", "node", "engine"),
    ),
    Recording(
        name=FAILURE_RATIO,
        expr=(
            f"{FAILURES} / ({FAILURES} + (sum by (job, node, engine) "
            "(increase(kvdiag_engine_transfer_seconds_count[10m])) or sum by (job, node, engine) "
            "(increase(kvdiag_engine_transfers_total[10m])) or 0 * "
            f"{FAILURES}) > 0)"
        ),
        labels=("job", "node", "engine"),
    ),
    Recording(
        name=PORT_BYTES,
        expr=(
            "sum by (job, instance, node, device, port) (rate(kvdiag_rdma_port_transmit_bytes_total[5m]) + "
            "rate(kvdiag_rdma_port_receive_bytes_total[5m]))"
        ),
        labels=_PORT,
    ),
    # Rails are the ports of a node's greatest rate: slower ones are for management or storage.
    Recording(
        name=RAIL_BYTES,
        expr=(
            f"{PORT_BYTES} and on (job, instance, node, device, port) (kvdiag_rdma_port_speed_bytes_per_second == "
            "on (job, instance) group_left () max by (job, instance) (kvdiag_rdma_port_speed_bytes_per_second))"
        ),
        labels=_PORT,
    ),
    Recording(
        name=RETRANSMIT_RATIO,
        # mlx5 without adaptive retransmission counts none; each NAK of a lost packet makes it send at least one again.
        expr=(
            f"({_port_rate('retransmits')} or {_port_rate('sequence_naks')}) / ({_port_rate('transmit_packets')} > 100)"
        ),
        labels=_PORT,
    ),
    Recording(
        name=TROUBLE,
        expr=" + ".join(f"({_port_rate(one)} or 0 * ({_ANY_TROUBLE}))" for one in _TROUBLES),
        labels=_PORT,
    ),
)
