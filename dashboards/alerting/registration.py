"""Alerts on memory regions, queue pairs and their limits."""

from dashboards.alerting.base import COUNT, FABRIC_URL, PAIR_URL, PERCENT, VALUE, Alert

_PAIR = "prefill_node, decode_node"
_ENGINE = "job, node, engine"
_WHO = "Engine {{ $labels.engine }} on {{ $labels.node }}"
_REGIONS = f"sum by ({_ENGINE}) (kvdiag_rdma_memory_region_bytes{{}}%s)"


def _churn(what: str) -> str:
    """Return when objects come and go more than six times a minute, which only a start may do."""
    seen, gone = (f"sum by ({_ENGINE}) (rate(kvdiag_rdma_{what}_{end}_total[10m])) > 0.1" for end in ("seen", "gone"))
    return f"{seen} and {gone}"


ALERTS = (
    Alert(
        name="KVRegistrationInRequests",
        severity="warning",
        expr=(
            f'sum by ({_PAIR}) (rate(kvdiag_transfer_stage_seconds_sum{{stage="register"}}[5m])) / '
            f"(sum by ({_PAIR}) (rate(kvdiag_ttft_seconds_sum[5m])) > 0) > 0.05"
        ),
        hold="10m",
        why="Judgement: registered at start-up it is 0; a repair of less than a twentieth of TTFT is not felt.",
        summary="Requests wait for memory to be registered.",
        description=(
            f"{PERCENT} of the time to first token from {{{{ $labels.prefill_node }}}} to "
            "{{ $labels.decode_node }} is registration."
        ),
        page="docs/runbooks/KVRegistrationInRequests.md",
        dashboard=PAIR_URL,
    ),
    Alert(
        name="KVRegistrationChurn",
        severity="warning",
        expr=_churn("memory_regions"),
        hold="15m",
        why="Judgement: six a minute that come and go are no start and no growth; a start ends within 15 minutes.",
        summary="An engine registers and deregisters memory all the time.",
        description=f"{_WHO} registers {VALUE} regions a second.",
        page="docs/runbooks/KVRegistrationInRequests.md",
        dashboard=FABRIC_URL,
    ),
    Alert(
        name="KVRegisteredMemoryGrows",
        severity="warning",
        # An hour and half an hour ago: a start registers much at once, a leak goes on.
        expr=(
            f"{_REGIONS % ''} / {_REGIONS % ' offset 1h'} > 1.2 and {_REGIONS % ''} / {_REGIONS % ' offset 30m'} > 1.05"
        ),
        hold="30m",
        why="Judgement: a fifth in an hour, and still going on, is no start.",
        summary="Registered memory grows and does not stop.",
        description=f"{_WHO} has {VALUE} times as much registered as an hour ago.",
        page="kvdiag/checks/eng020_registration_cache_grows.md",
        dashboard=FABRIC_URL,
    ),
    Alert(
        name="KVRegistrationRefused",
        severity="critical",
        expr="sum by (job, node, device) (increase(kvdiag_rdma_registration_errors_total[10m])) > 0",
        hold="1m",
        why="Any: the device refused it, and the engine goes on without RDMA or ends.",
        summary="A device refuses to register memory.",
        description=f"{{{{ $labels.device }}}} on {{{{ $labels.node }}}} refused {COUNT} registrations in 10 minutes.",
        page="kvdiag/checks/efa001_registration_refused.md",
        dashboard=FABRIC_URL,
    ),
    Alert(
        name="KVPinnedMemoryNearLimit",
        severity="warning",
        expr="max by (job, node, engine) (kvdiag_engine_pinned_memory_ratio) > 0.9",
        hold="5m",
        why="A tenth left: at the limit registration fails, so there must be time to act.",
        summary="Pinned memory is near the engine's limit.",
        description=f"{_WHO} has pinned {PERCENT} of what it may; at 100% registration fails.",
        page="kvdiag/checks/lim001_memlock.md",
        dashboard=FABRIC_URL,
    ),
    Alert(
        name="KVGPUWindowNearFull",
        severity="warning",
        expr="kvdiag_gpu_window_used_ratio > 0.95",
        hold="5m",
        why="A tenth left: the next large registration is the one that fails.",
        summary="The window through which NICs reach GPU memory is nearly full.",
        description=f"{PERCENT} of the window of GPU {{{{ $labels.gpu }}}} on {{{{ $labels.node }}}} is taken.",
        page="kvdiag/checks/gdr005_small_pci_window.md",
        dashboard=FABRIC_URL,
    ),
    Alert(
        name="KVDeviceObjectsNearLimit",
        severity="warning",
        expr="max by (job, node, device, kind) (kvdiag_rdma_objects_used_ratio) > 0.9",
        hold="5m",
        why="A tenth left: a restart may hold old and new objects for a while, and at the limit creation fails.",
        summary="A device has nearly no queue pairs, or objects of another kind, left.",
        description=(
            f"{PERCENT} of the objects of kind {{{{ $labels.kind }}}} that {{{{ $labels.device }}}} on "
            "{{ $labels.node }} allows are in use."
        ),
        page="kvdiag/checks/lim004_queue_pairs_used_up.md",
        dashboard=FABRIC_URL,
    ),
    Alert(
        name="KVQueuePairsInError",
        severity="critical",
        expr='sum by (job, node, device, engine) (kvdiag_rdma_queue_pairs{state=~"ERR|SQE"}) > 0',
        hold="5m",
        why="Any that stays five minutes: an engine that recovers has destroyed them by then.",
        summary="Queue pairs of an engine stay in error.",
        description=f"{_WHO} has {COUNT} on {{{{ $labels.device }}}}; they move nothing.",
        page="docs/runbooks/KVQueuePairs.md",
        dashboard=FABRIC_URL,
    ),
    Alert(
        name="KVQueuePairChurn",
        severity="warning",
        expr=_churn("queue_pairs"),
        hold="15m",
        why="Judgement: six a minute after the start; a connection costs its request tens of milliseconds.",
        summary="An engine makes and drops queue pairs all the time.",
        description=f"{_WHO} makes {VALUE} queue pairs a second: requests pay for connections.",
        page="docs/runbooks/KVQueuePairs.md",
        dashboard=FABRIC_URL,
    ),
)
