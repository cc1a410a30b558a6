"""Alerts on ports, links, losses and pauses."""

from dashboards.alerting import recordings
from dashboards.alerting.base import COUNT, FABRIC_URL, PERCENT, PORT_URL, VALUE, Alert

_PORT = "job, instance, node, device, port"
_WHERE = "{{ $labels.device }}/{{ $labels.port }} on {{ $labels.node }}"
_NETDEV = "{{ $labels.device }} on {{ $labels.node }}"
_BYTES, _RAILS, _TROUBLE = recordings.PORT_BYTES, recordings.RAIL_BYTES, recordings.TROUBLE
_PAUSES = "kvdiag/checks/fab013_pauses_senders.md"


def _paused(direction: str) -> str:
    """Return the share of time above which a priority counts as paused: a twentieth."""
    seconds = f'kvdiag_netdev_pause_seconds_total{{direction="{direction}"}}'
    return f"sum by (job, node, device, priority) (rate({seconds}[5m])) > 0.05"


ALERTS = (
    Alert(
        name="KVFabricPortDown",
        severity="critical",
        expr="kvdiag_rdma_port_up == 0 and max_over_time(kvdiag_rdma_port_up[1d]) == 1",
        hold="1m",
        why="No number: the port was ACTIVE within a day.",
        summary="An RDMA port that was up today is down.",
        description=f"Port {_WHERE} is not ACTIVE.",
        page="kvdiag/checks/fab002_port_down.md",
        dashboard=PORT_URL,
    ),
    Alert(
        name="KVFabricLinkFlap",
        severity="warning",
        expr=(
            f"(sum by ({_PORT}) (increase(kvdiag_rdma_port_link_downed_total[1h])) >= 2) or "
            f'(sum by ({_PORT}) (increase(kvdiag_rdma_port_link_changes_total{{to="down"}}[1h])) >= 2)'
        ),
        hold="1m",
        why="Twice in an hour: once may be a switch's maintenance.",
        summary="A link goes down again and again.",
        description=f"Port {_WHERE} lost its link {COUNT} times in an hour.",
        page="kvdiag/checks/fab003_link_flaps.md",
        dashboard=PORT_URL,
    ),
    Alert(
        name="KVFabricLinkSlow",
        severity="warning",
        # Ports that carry nothing may be slow by design: those of management.
        expr=(
            "kvdiag_rdma_port_speed_bytes_per_second < on (job, instance) group_left () "
            "max by (job, instance) (kvdiag_rdma_port_speed_bytes_per_second) "
            f"and on ({_PORT}) {_BYTES} > 1e6"
        ),
        hold="10m",
        why="The node's fastest port is the measure; 1 MB/s tells ports in use from those of management.",
        summary="A port that carries RDMA traffic has a lower rate than its siblings.",
        description=f"Port {_WHERE} runs at {{{{ $value | humanize }}}}B/s.",
        page="kvdiag/checks/fab001_rate_below_siblings.md",
        dashboard=PORT_URL,
    ),
    Alert(
        name="KVFabricRetransmissions",
        severity="warning",
        # One packet in a thousand: go-back-N sends a whole window again for each.
        expr=f"{recordings.RETRANSMIT_RATIO} > 0.001",
        hold="10m",
        why="Judgement: go-back-N sends a whole window again for one packet, so a small loss costs many times itself.",
        summary="A port sends more than one packet in a thousand again.",
        description=f"Port {_WHERE} retransmits {PERCENT} of its packets.",
        page="docs/runbooks/KVFabricLoss.md",
        dashboard=PORT_URL,
    ),
    Alert(
        name="KVFabricRetriesExceeded",
        severity="critical",
        expr=f"sum by ({_PORT}) (increase(kvdiag_rdma_port_retries_exceeded_total[5m])) > 0",
        hold="1m",
        why="Any: every retry failed, and the queue pair is in error.",
        summary="Requests were given up after every retry.",
        description=f"Port {_WHERE} gave up {COUNT} requests in 5 minutes; their queue pairs are in error.",
        page="kvdiag/checks/wc012_transport_retry_exceeded.md",
        dashboard=PORT_URL,
    ),
    Alert(
        name="KVFabricReceiverNotReady",
        severity="critical",
        expr=f"sum by ({_PORT}) (increase(kvdiag_rdma_port_rnr_retries_exceeded_total[5m])) > 0",
        hold="1m",
        why="Any: the receiver was not ready in all retries, and the queue pair is in error.",
        summary="Requests were given up because the receiver was never ready.",
        description=f"Port {_WHERE} gave up {COUNT} requests in 5 minutes.",
        page="kvdiag/checks/wc013_rnr_retry_exceeded.md",
        dashboard=PORT_URL,
    ),
    Alert(
        name="KVFabricOnePortGuilty",
        severity="warning",
        expr=(
            f"{_TROUBLE} > 1 and {_TROUBLE} > on (job, instance) group_left () "
            f"0.8 * sum by (job, instance) ({_TROUBLE}) "
            f"and on (job, instance) count by (job, instance) ({_TROUBLE}) >= 2"
        ),
        hold="10m",
        why="Judgement: trouble of the fabric meets all ports; four fifths on one, above one a second, is that port's.",
        summary="One port of several has nearly all of the node's retransmissions and timeouts.",
        description=f"Port {_WHERE} has {VALUE} a second.",
        page="kvdiag/checks/fab004_failures_on_one_nic.md",
        dashboard=PORT_URL,
    ),
    Alert(
        name="KVFabricRailImbalance",
        severity="warning",
        # Idle nodes are not judged: the busiest port carries at least 100 MB/s.
        expr=(
            f"min by (job, instance, node) ({_RAILS}) / (max by (job, instance, node) ({_RAILS}) > 1e8) < 0.2 "
            f"and on (job, instance, node) count by (job, instance, node) ({_RAILS}) >= 2"
        ),
        hold="15m",
        why="Judgement: balanced rails carry like loads; below a fifth one is unused. 100 MB/s leaves idle nodes out.",
        summary="The rails of a node carry very different loads.",
        description=f"The least used rail on {{{{ $labels.node }}}} carries {PERCENT} of the most used one's traffic.",
        page="kvdiag/checks/top003_traffic_on_few_cards.md",
        dashboard=FABRIC_URL,
    ),
    Alert(
        name="KVFabricPausedByNetwork",
        severity="warning",
        expr=_paused("receive"),
        hold="5m",
        why="Judgement: a twentieth of the time takes as much of the rate, and spreads to the senders behind.",
        summary="The network pauses a host.",
        description=f"Priority {{{{ $labels.priority }}}} of {_NETDEV} could not send {PERCENT} of the time.",
        page=_PAUSES,
        dashboard=FABRIC_URL,
    ),
    Alert(
        name="KVFabricPausesSenders",
        severity="warning",
        expr=_paused("transmit"),
        hold="5m",
        why="Judgement, the same share as for pauses received.",
        summary="A host pauses its senders: it takes data more slowly than the network brings it.",
        description=f"Priority {{{{ $labels.priority }}}} of {_NETDEV} stopped its senders {PERCENT} of the time.",
        page=_PAUSES,
        dashboard=FABRIC_URL,
    ),
    Alert(
        name="KVFabricPauseStorm",
        severity="critical",
        expr="sum by (job, node, device) (increase(kvdiag_netdev_pause_storms_total[10m])) > 0",
        hold="1m",
        why="Any: the card itself calls it a storm.",
        summary="A pause storm: a host stopped its senders for too long.",
        description=f"{_NETDEV} had {COUNT} storms in 10 minutes.",
        page=_PAUSES,
        dashboard=FABRIC_URL,
    ),
    Alert(
        name="KVFabricLosslessDiscards",
        severity="warning",
        expr=(
            "sum by (job, node, device, priority) (increase(kvdiag_netdev_priority_discards_total[10m])) > 0 "
            "and on (job, node, device, priority) increase(kvdiag_netdev_pause_frames_total[1h]) > 0"
        ),
        hold="1m",
        why="Any: a lossless priority discards nothing while its pauses work.",
        summary="Packets of a priority that is paused, and so meant to be lossless, were discarded.",
        description=f"{_NETDEV} discarded {COUNT} packets of priority {{{{ $labels.priority }}}} in 10 minutes.",
        page="kvdiag/checks/fab010_lossless_priority.md",
        dashboard=FABRIC_URL,
    ),
    Alert(
        name="KVFabricCongestion",
        severity="info",
        expr=(
            f"sum by ({_PORT}) (rate(kvdiag_rdma_port_cnp_handled_total[5m])) / "
            f"(sum by ({_PORT}) (rate(kvdiag_rdma_port_transmit_packets_total[5m])) > 100) > 0.01"
        ),
        hold="15m",
        why="Judgement: some are how a busy link is shared; at one in a hundred packets a sender is held back.",
        summary="Congestion notifications slow a port down.",
        description=f"Port {_WHERE} received one for {PERCENT} of the packets it sent.",
        page="docs/runbooks/KVFabricCongestion.md",
        dashboard=PORT_URL,
    ),
)
