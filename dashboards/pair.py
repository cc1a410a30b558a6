"""Pair drill-down: one prefill and one decode node, from the request's stages down to the ports between them."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards import panels
from dashboards.alerting.recordings import PAIR_BASELINE
from dashboards.overview import RECORDED, SIZE, TRANSFER
from dashboards.panels import NOT_SEEN, Row, lines, rows_of
from dashboards.queries import (
    BETWEEN,
    JOB,
    PAIR,
    PATH,
    PROBED,
    WIRE,
    Query,
    carriers,
    mean,
    own_quantile,
    own_rate,
    quantile,
    rate,
    unless_read,
)

POST = "kvdiag_engine_transfer_post_seconds"
DESCRIPTORS = "kvdiag_engine_transfer_descriptors"
PORT = "{{node}} {{device}}/{{port}}"


def _stages() -> Row:
    requests = rate("kvdiag_ttft_seconds_count", PAIR)
    return Row(
        "Where does a request's time go between these nodes?",
        [
            lines(
                "Mean time per stage",
                "Seconds of each stage per request, in the order a request passes them: a stage that grows is the "
                "place to "
                "look. queue, prefill: not the network; setup: queue pairs; register: memory regions; post: many small "
                "descriptors; wire: the fabric.",
                "s",
                [
                    Query(
                        f"{rate(f'{RECORDED}_sum', PAIR, 'stage')} / on () group_left () ({requests} > 0)", "{{stage}}"
                    )
                ],
                stacked=True,
            ),
            lines(
                "Stages p99",
                "What the slowest requests in a hundred spend in each stage; these do not add up.",
                "s",
                [Query(quantile(0.99, RECORDED, PAIR, "stage"), "{{stage}}")],
            ),
            lines(
                "Time to first token",
                "Of the requests of this pair.",
                "s",
                [Query(quantile(q, "kvdiag_ttft_seconds", PAIR), f"p{q * 100:g}") for q in (0.5, 0.9, 0.99)],
            ),
            lines(
                "Transfer time against its own past",
                "The time on the wire at p99, and the median that it had the day before where the recording rules "
                "are loaded.",
                "s",
                [
                    Query(quantile(0.99, RECORDED, f"{PAIR}, {WIRE}", "prefill_node, decode_node"), "p99 now"),
                    Query(
                        f"max by (prefill_node, decode_node) ({PAIR_BASELINE}{{{BETWEEN}}})",
                        "p99, median of the day before",
                    ),
                ],
            ),
        ],
    )


def _sizes() -> Row:
    return Row(
        "Is more moved, or is it moved more slowly?",
        [
            lines(
                "Bytes per request",
                "Mean bytes of KV cache for a request. Time that grows with it is the workload, not a fault.",
                "bytes",
                [
                    Query(
                        mean("kvdiag_transfer_size_bytes", PAIR, "prefill_node, decode_node"),
                        "{{prefill_node}} → {{decode_node}}",
                    ),
                    *unless_read(_own_mean_size(), SIZE),
                ],
                width=8,
            ),
            lines(
                "Speed of a transfer",
                "Bytes moved by the seconds on the wire: what one transfer gets. Falling at equal size is a slower "
                "path.",
                "Bps",
                [Query(_live_speed(), "{{prefill_node}} → {{decode_node}}")],
                width=8,
            ),
            lines(
                "Descriptors per request",
                "Thousands of small descriptors make posting, not the wire, the longer part.",
                "short",
                [
                    Query(
                        mean("kvdiag_transfer_descriptors", PAIR, "prefill_node, decode_node"),
                        "{{prefill_node}} → {{decode_node}}",
                    ),
                    *unless_read(own_quantile(0.5, DESCRIPTORS), DESCRIPTORS),
                ],
                width=8,
            ),
        ],
    )


def _own_mean_size() -> list[Query]:
    sums, counts = own_rate(SIZE, part="sum"), own_rate(SIZE, part="count")
    return [
        Query(f"({total.expr}) / ({count.expr} > 0)", total.legend) for total, count in zip(sums, counts, strict=True)
    ]


def _probes() -> Row:
    by = "node, peer, probe, operation, transport"
    legend = "{{node}} → {{peer}} {{probe}} {{operation}} {{transport}}"
    size = "{{size}} B"
    return Row(
        "What did probes measure on this path, beside live traffic?",
        [
            lines(
                "Speed: live transfers and the last probe",
                "What a transfer gets, and what the last probe between these hosts got at its fastest size. Both low: "
                "the path. Only live low: layout, registration or a busy engine.",
                "Bps",
                [
                    Query(_live_speed(), "live {{prefill_node}} → {{decode_node}}"),
                    Query(f"max by ({by}) (kvdiag_probe_bandwidth_bytes_per_second{{{PROBED}}})", f"probe {legend}"),
                ],
                width=8,
                empty=NOT_SEEN,
            ),
            lines(
                "Latency of the last probe",
                "Median and p99 of one message by its size in bytes; from post to completion.",
                "s",
                [
                    Query(f"max by ({by}, size) (kvdiag_probe_latency_{p}_seconds{{{PROBED}}})", f"{size} {p} {legend}")
                    for p in ("p50", "p99")
                ],
                width=8,
                empty=NOT_SEEN,
            ),
            rows_of(
                "Last probes",
                "How long ago each kind of probe last ran, oldest first; a result is of then, not of now. "
                "`kvdiag probe … --out FILE` adds to the files that the exporter is told of by probe_results.",
                "s",
                f"sort_desc(time() - max by ({by}) (kvdiag_probe_timestamp_seconds{{{PROBED}}}))",
                names={
                    "node": "From", "peer": "To", "probe": "Probe", "operation": "Operation", "transport": "Transport",
                    "Value": "Ago",
                },
                width=8,
                empty=NOT_SEEN,
            ),
        ],
    )  # fmt: skip


def _live_speed() -> str:
    return (
        f"{rate('kvdiag_transfer_size_bytes_sum', PAIR, 'prefill_node, decode_node')} / "
        f"({rate(f'{RECORDED}_sum', f'{PAIR}, {WIRE}', 'prefill_node, decode_node')} > 0)"
    )


def _ports() -> Row:
    return Row(
        "What do the ports of these nodes see?",
        [
            lines(
                "Utilisation of the ports",
                "Share of the negotiated rate. Near 1: the link is the limit; low while transfers are slow: it is not.",
                "percentunit",
                [Query(f"kvdiag_rdma_port_utilisation_ratio{{{PATH}}}", f"{PORT} {{{{direction}}}}")],
                top=1,
                empty=NOT_SEEN,
            ),
            lines(
                "What carried the KV bytes",
                "Proved by counters over a minute: rdma is what it should be between nodes.",
                "short",
                carriers(PATH),
                top=1,
            ),
            lines(
                "Loss: retransmissions and packets out of sequence",
                "Per second, as requester and as responder. On RoCE each loss costs a round trip or a timeout.",
                "pps",
                [
                    Query(
                        rate("kvdiag_rdma_port_retransmits_total", PATH, "node, device, port"), f"{PORT} retransmitted"
                    ),
                    Query(
                        rate("kvdiag_rdma_port_out_of_sequence_total", PATH, "node, device, port"),
                        f"{PORT} out of sequence",
                    ),
                    Query(rate("kvdiag_rdma_port_ack_timeouts_total", PATH, "node, device, port"), f"{PORT} timed out"),
                ],
                empty=NOT_SEEN,
            ),
            lines(
                "Congestion: notifications and marks",
                "Congestion notifications that made this port slow down, and marked packets that it received, per "
                "second.",
                "pps",
                [
                    Query(rate("kvdiag_rdma_port_cnp_handled_total", PATH, "node, device, port"), f"{PORT} notified"),
                    Query(
                        rate("kvdiag_rdma_port_ecn_marked_packets_total", PATH, "node, device, port"), f"{PORT} marked"
                    ),
                ],
                empty=NOT_SEEN,
            ),
            lines(
                "Time paused by priority",
                "Share of time. receive: the network stopped this host; transmit: this host stopped its senders.",
                "percentunit",
                [
                    Query(
                        rate("kvdiag_netdev_pause_seconds_total", PATH, "node, device, direction, priority"),
                        "{{node}} {{device}} {{direction}} {{priority}}",
                    )
                ],
                width=24,
                empty=NOT_SEEN,
            ),
        ],
    )


def _registration() -> Row:
    return Row(
        "Is memory registered, or are queue pairs made, while requests wait?",
        [
            lines(
                "Memory regions and queue pairs that appeared, per second",
                "After start-up both should be zero: each registration or connection is paid by the request that "
                "needs it.",
                "ops",
                [
                    Query(
                        rate("kvdiag_rdma_memory_regions_seen_total", PATH, "node, device, engine"),
                        "{{node}} {{device}} {{engine}} regions",
                    ),
                    Query(
                        rate("kvdiag_rdma_queue_pairs_seen_total", PATH, "node, device, engine"),
                        "{{node}} {{device}} {{engine}} queue pairs",
                    ),
                ],
                width=8,
                empty=NOT_SEEN,
            ),
            lines(
                "Registered memory",
                "Bytes of live memory regions by engine; overlapping regions count each.",
                "bytes",
                [Query(f"sum by (node, engine) (kvdiag_rdma_memory_region_bytes{{{PATH}}})", "{{node}} {{engine}}")],
                width=8,
                empty=NOT_SEEN,
            ),
            lines(
                "Queue pairs by state",
                "RTS can send. ERR moves nothing until the engine makes a new one.",
                "short",
                [
                    Query(
                        f"sum by (node, engine, state) (kvdiag_rdma_queue_pairs{{{PATH}}})",
                        "{{node}} {{engine}} {{state}}",
                    )
                ],
                width=8,
                empty=NOT_SEEN,
            ),
        ],
    )


def _findings() -> Row:
    return Row(
        "What has kvdiag found here?",
        [
            rows_of(
                "Open findings",
                "Findings that hold now. `kvdiag explain CODE` prints the page of each; /healthz of the exporter has "
                "its numbers.",
                "short",
                f"max by (node, severity, code, subject) (kvdiag_finding{{{JOB}}}) == 1",
                names={"severity": "Severity", "code": "Code", "subject": "Subject", "node": "Node", "Value": "Open"},
                width=24,
                empty="Nothing found",
            )
        ],
    )


def _handles() -> Row:
    by = "node, direction, transport"
    legend = "{{node}} {{direction}} {{transport}}"
    return Row(
        "What do the single handles of these nodes say? (needs spans or step records)",
        [
            lines(
                "Time of one handle p99",
                "From its post until it was seen complete, by transport: tcp beside rdma here is a path that fell "
                "back.",
                "s",
                [Query(quantile(0.99, "kvdiag_handle_transfer_seconds", PATH, by), legend)],
                width=8,
            ),
            lines(
                "Time to post p99",
                "Long posts: many descriptors, a full send queue, or a connection that is made first.",
                "s",
                [Query(quantile(0.99, "kvdiag_handle_post_seconds", PATH, by), legend)],
                width=8,
            ),
            lines(
                "Failed handles per second",
                "By what they failed with.",
                "ops",
                [Query(rate("kvdiag_handle_failures_total", PATH, f"{by}, error"), f"{legend} {{{{error}}}}")],
                width=8,
                empty=NOT_SEEN,
            ),
        ],
        collapsed=True,
    )


def _own() -> Row:
    return Row(
        "What do the engines themselves measure? (scraped without kvdiag)",
        [
            lines(
                "Transfer time",
                "The engines' own histograms. They name no peer: choose the instances by job.",
                "s",
                [*own_quantile(0.5, TRANSFER), *own_quantile(0.99, TRANSFER)],
            ),
            lines(
                "Posting",
                "Time until a transfer was posted. Long beside a short transfer: too many descriptors.",
                "s",
                own_quantile(0.99, POST),
            ),
            lines("Bytes per transfer", "Mean by the engines' own count.", "bytes", _own_mean_size()),
            lines(
                "Descriptors per transfer", "Median by the engines' own count.", "short", own_quantile(0.5, DESCRIPTORS)
            ),
        ],
        collapsed=True,
    )


def build() -> Dashboard:
    """Return the drill-down that overview and alerts lead to."""
    return panels.dashboard(
        "kvdiag-pair",
        "kvdiag / Pair drill-down",
        "One prefill and one decode node: stages, sizes, ports, probes, registrations and findings on one time axis.",
        [panels.JOB, panels.SRC, panels.DST],
        [_stages(), _sizes(), _ports(), _probes(), _registration(), _findings(), _handles(), _own()],
    )
