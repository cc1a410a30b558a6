"""Fabric and registration: every port against its link, losses, pauses, links, memory regions and queue pairs."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards import panels
from dashboards.panels import NOT_SEEN, AnyPanel, Row, lines, rows_of
from dashboards.queries import DEVICE, ENGINE, JOB, NODE, PORT, Query, carriers, quantile, rate

_BY_PORT = "node, device, port"
_PORT = "{{node}} {{device}}/{{port}}"
_RDMA = "kvdiag_rdma_port"
_NETDEV = "kvdiag_netdev"


def _counters(title: str, tells: str, unit: str, *counters: tuple[str, str], width: int = 12) -> AnyPanel:
    """Return a panel of counters of ports per second: each by the end of its name and what people call it."""
    return lines(
        title,
        tells,
        unit,
        [Query(rate(f"{_RDMA}_{name}_total", PORT, _BY_PORT), f"{_PORT} {word}") for name, word in counters],
        width=width,
        empty=NOT_SEEN,
    )


def _pauses(title: str, tells: str, name: str, unit: str) -> AnyPanel:
    by = "node, device, direction, priority"
    query = Query(rate(f"{_NETDEV}_{name}_total", NODE, by), "{{node}} {{device}} {{direction}} {{priority}}")
    return lines(title, tells, unit, [query], empty=NOT_SEEN)


def _load() -> Row:
    return Row(
        "How full are the links?",
        [
            lines(
                "Utilisation against the negotiated rate",
                "Share of the link's rate since the collection before: short bursts show as less than they were. "
                "Near 1: "
                "more rails or fewer bytes; uneven rails: an engine that uses few of them.",
                "percentunit",
                [Query(f"{_RDMA}_utilisation_ratio{{{PORT}}}", f"{_PORT} {{{{direction}}}}")],
                top=1,
                empty=NOT_SEEN,
            ),
            _counters(
                "Bytes per second",
                "Of RDMA on each port. A node whose ports rest while its engines move KV caches is on TCP.",
                "Bps",
                ("transmit_bytes", "sent"),
                ("receive_bytes", "received"),
            ),
            rows_of(
                "Ports",
                "Negotiated rate of the ports that are up. One below its siblings limits every transfer that takes it.",
                "Bps",
                f"max by (node, device, port) ({_RDMA}_speed_bytes_per_second{{{PORT}}} "
                f"and on (node, device, port) {_RDMA}_up{{{PORT}}} == 1)",
                names={"node": "Node", "device": "Device", "port": "Port", "Value": "Rate"},
                width=24,
                empty=NOT_SEEN,
            ),
        ],
    )


def _carriers() -> Row:
    return Row(
        "What carries the KV caches: RDMA, or something else?",
        [
            lines(
                "What carried the KV bytes",
                "Proved by counters over a minute. tcp or mixed beside ports that are up: a path fell back. unknown: "
                "no "
                "counter tells; absent: no engine says that it moved anything.",
                "short",
                carriers(NODE),
                top=1,
            ),
            lines(
                "KV bytes of a minute, by who counted them",
                "claimed: the engines; rdma, ip, loopback: the counters of this node, other traffic included. Where "
                "claimed "
                "and rdma part, look which other one follows claimed.",
                "bytes",
                [
                    Query(
                        f"sum by (node, direction, counted_by) (kvdiag_transfer_window_bytes{{{NODE}}})",
                        "{{node}} {{direction}} {{counted_by}}",
                    )
                ],
            ),
        ],
    )


def _trouble() -> Row:
    return Row(
        "Is anything lost, or sent again?",
        [
            _counters(
                "Retransmissions and timeouts per second",
                "As requester. Timeouts cost tens of milliseconds each; retries exceeded put the queue pair in error.",
                "pps",
                ("retransmits", "retransmitted"),
                ("ack_timeouts", "timed out"),
                ("retries_exceeded", "given up"),
            ),
            _counters(
                "Out of sequence and duplicates per second",
                "As responder: the packets before these were lost or overtaken on the way to this port.",
                "pps",
                ("out_of_sequence", "out of sequence"),
                ("duplicate_requests", "duplicate"),
                ("sequence_naks", "told the sender"),
            ),
            _counters(
                "Receiver not ready per second",
                "The far end, or this one, had no receive buffer posted: the engine's processor is late, not the "
                "fabric.",
                "pps",
                ("rnr_naks", "NAK received"),
                ("receiver_not_ready", "no buffer here"),
                ("rnr_retries_exceeded", "given up"),
            ),
            _counters(
                "Discards and errors per second",
                "Packets that cards dropped, and damaged ones: buffers too small, or a bad cable.",
                "pps",
                ("receive_discards", "received, dropped"),
                ("transmit_discards", "not sent"),
                ("receive_errors", "damaged"),
                ("symbol_errors", "symbol errors"),
            ),
        ],
    )


def _congestion() -> Row:
    return Row(
        "Is the fabric congested, and who pauses whom?",
        [
            _counters(
                "Congestion notifications and marks per second",
                "handled: this port slowed down; sent: it told a sender; marked: packets that a switch marked on the "
                "way here.",
                "pps",
                ("cnp_handled", "handled"),
                ("cnp_sent", "sent"),
                ("ecn_marked_packets", "marked"),
            ),
            lines(
                "Ticks with data and no credit",
                "InfiniBand: how often the port had something to send and was not allowed. The tick is the card's.",
                "ops",
                [Query(rate(f"{_RDMA}_transmit_wait_ticks_total", PORT, _BY_PORT), _PORT)],
                empty=NOT_SEEN,
            ),
            _pauses(
                "Time paused by priority",
                "Share of time. receive: the network stopped this host, look for the receiver behind it; transmit: "
                "this host "
                "stopped its senders, look at its PCI links and memory.",
                "pause_seconds",
                "percentunit",
            ),
            _pauses("Pause frames per second", "By priority; global is the whole link.", "pause_frames", "pps"),
            lines(
                "Discards by priority, and pause storms",
                "Discards on a lossless priority say that it is not lossless. A storm: a host paused its senders too "
                "long.",
                "pps",
                [
                    Query(
                        rate(f"{_NETDEV}_priority_discards_total", NODE, "node, device, priority"),
                        "{{node}} {{device}} priority {{priority}} discarded",
                    ),
                    Query(rate(f"{_NETDEV}_pause_storms_total", NODE, "node, device"), "{{node}} {{device}} storms"),
                ],
                width=24,
                empty=NOT_SEEN,
            ),
        ],
    )


def _links() -> Row:
    return Row(
        "Are the links steady?",
        [
            lines(
                "Ports up",
                "1 where the port is ACTIVE.",
                "short",
                [Query(f"{_RDMA}_up{{{PORT}}}", _PORT)],
                width=8,
                top=1,
                empty=NOT_SEEN,
            ),
            lines(
                "Link events in an hour",
                "Times that the link went down, recovered from errors, or was seen to change.",
                "short",
                [
                    Query(
                        f"sum by ({_BY_PORT}) (increase({_RDMA}_link_downed_total{{{PORT}}}[1h]))", f"{_PORT} downed"
                    ),
                    Query(
                        f"sum by ({_BY_PORT}) (increase({_RDMA}_link_recoveries_total{{{PORT}}}[1h]))",
                        f"{_PORT} recovered",
                    ),
                    Query(
                        f"sum by ({_BY_PORT}, to) (increase({_RDMA}_link_changes_total{{{PORT}}}[1h]))",
                        f"{_PORT} seen {{{{to}}}}",
                    ),
                ],
                width=8,
                empty=NOT_SEEN,
            ),
            lines(
                "Counters that tell nothing",
                "unreadable: there, but no number; saturated: at the greatest value, so that the rate reads zero.",
                "short",
                [
                    Query(f"{_RDMA}_unreadable{{{PORT}}}", f"{_PORT} unreadable"),
                    Query(f"sum by ({_BY_PORT}) ({_RDMA}_saturated{{{PORT}}})", f"{_PORT} saturated"),
                ],
                width=8,
                empty=NOT_SEEN,
            ),
        ],
    )


def _registration() -> Row:
    stage = f'{JOB}, stage="register"'
    return Row(
        "What is registered, and what does it cost?",
        [
            lines(
                "Registered memory",
                "Bytes of live memory regions. Growing for hours while the load does not: a registration cache that "
                "leaks.",
                "bytes",
                [Query(f"sum by (node, engine) (kvdiag_rdma_memory_region_bytes{{{DEVICE}}})", "{{node}} {{engine}}")],
                empty=NOT_SEEN,
            ),
            lines(
                "Memory regions",
                "Live regions by engine. Thousands of small ones cost the card's cache of translations.",
                "short",
                [
                    Query(
                        f'sum by (node, engine) (kvdiag_rdma_engine_objects{{{DEVICE}, kind="mr"}})',
                        "{{node}} {{engine}}",
                    )
                ],
                empty=NOT_SEEN,
            ),
            lines(
                "Limits: pinned memory, device objects, GPU window",
                "Share that is taken of the engine's locked-memory limit, of what the device allows of each kind of "
                "object, "
                "and of the GPU memory window (BAR1) that NICs reach. At 1 the next registration or queue pair fails.",
                "percentunit",
                [
                    Query(
                        f"max by (node, engine) (kvdiag_engine_pinned_memory_ratio{{{ENGINE}}})",
                        "{{node}} {{engine}} pinned",
                    ),
                    Query(
                        f"max by (node, device, kind) (kvdiag_rdma_objects_used_ratio{{{DEVICE}}})",
                        "{{node}} {{device}} {{kind}}",
                    ),
                    Query(f"max by (node, gpu) (kvdiag_gpu_window_used_ratio{{{NODE}}})", "{{node}} {{gpu}} window"),
                ],
                top=1,
                empty="Nothing with a limit is watched",
            ),
            lines(
                "Registrations per second",
                "Regions that appeared and went, NIXL's own count, and those that the device refused. After "
                "start-up: zero.",
                "ops",
                [
                    Query(
                        rate("kvdiag_rdma_memory_regions_seen_total", DEVICE, "node, engine"),
                        "{{node}} {{engine}} regions",
                    ),
                    Query(
                        rate("kvdiag_rdma_memory_regions_gone_total", DEVICE, "node, engine"),
                        "{{node}} {{engine}} gone",
                    ),
                    Query(
                        rate("kvdiag_rdma_registration_errors_total", DEVICE, "node, device"),
                        "{{node}} {{device}} refused",
                    ),
                    Query(rate("kvdiag_nixl_registrations_total", ENGINE, "node, engine"), "{{node}} {{engine}} NIXL"),
                ],
                empty=NOT_SEEN,
            ),
            lines(
                "Time to register, p99",
                "What requests waited for registrations, from per-request records.",
                "s",
                [
                    Query(
                        quantile(0.99, "kvdiag_transfer_stage_seconds", stage, "prefill_node, decode_node"),
                        "{{prefill_node}} → {{decode_node}}",
                    )
                ],
                width=8,
            ),
            lines(
                "Time in the kernel, p99",
                "Registrations, pinning and queue pair set-up; each bucket is twice the one before. Needs "
                "kernel_timing in the exporter's configuration.",
                "s",
                [
                    Query(
                        quantile(0.99, "kvdiag_rdma_call_seconds", NODE, "node, engine, call"),
                        "{{node}} {{engine}} {{call}}",
                    )
                ],
                width=8,
                empty="The exporter does not time the kernel",
            ),
            lines(
                "Queue pairs by state",
                "ERR moves nothing until the engine makes a new one.",
                "short",
                [
                    Query(
                        f"sum by (node, engine, state) (kvdiag_rdma_queue_pairs{{{DEVICE}}})",
                        "{{node}} {{engine}} {{state}}",
                    )
                ],
                width=8,
                empty=NOT_SEEN,
            ),
        ],
    )


def build() -> Dashboard:
    """Return the dashboard of the layers below the engines."""
    return panels.dashboard(
        "kvdiag-fabric",
        "kvdiag / Fabric and registration",
        "RDMA ports, links, pauses, memory regions and queue pairs of the nodes that serve.",
        [panels.JOB, panels.ENGINE, panels.NODE, panels.DEVICE, panels.PORT],
        [_carriers(), _load(), _trouble(), _congestion(), _links(), _registration()],
    )
