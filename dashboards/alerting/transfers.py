"""Alerts on KV transfers and on what they do to time to first token."""

from dashboards.alerting import recordings
from dashboards.alerting.base import COUNT, ENGINE_URL, FABRIC_URL, PAIR_URL, PERCENT, SECONDS, VALUE, Alert

_PAIR = "prefill_node, decode_node"
_P99, _RATE, _BASELINE = recordings.PAIR_P99, recordings.PAIR_RATE, recordings.PAIR_BASELINE
_ENGINE_P99, _ENGINE_BASELINE = recordings.ENGINE_P99, recordings.ENGINE_BASELINE
_SHARE_URL = "/d/kvdiag-overview?var-job={{ $labels.job }}"


def _stage(stage: str) -> str:
    return f'sum by ({_PAIR}) (rate(kvdiag_transfer_stage_seconds_sum{{stage=~"{stage}"}}[5m]))'


ALERTS = (
    Alert(
        name="KVTransferOverTCP",
        severity="critical",
        expr=(
            "max by (job, instance, node, direction, transport) "
            '(kvdiag_transfer_transport{transport=~"tcp|mixed"}) == 1 '
            "and on (job, instance) max by (job, instance) (kvdiag_rdma_port_up) == 1"
        ),
        hold="5m",
        why="No number: counters exclude RDMA as the carrier. Five minutes outlast a start.",
        summary="KV caches go over TCP although an RDMA port is up.",
        description="What {{ $labels.node }} moves ({{ $labels.direction }}) was carried by: {{ $labels.transport }}.",
        page="kvdiag/checks/trn001_ucx_offers_only_tcp.md",
        dashboard=FABRIC_URL,
    ),
    Alert(
        name="KVTransferFailing",
        severity="critical",
        expr=f"{recordings.FAILURE_RATIO} > 0.01 and {recordings.FAILURES} >= 3",
        hold="2m",
        why="Judgement: a healthy fabric fails none; below three in ten minutes it may be one engine's restart.",
        summary="KV transfers fail.",
        description=f"{PERCENT} of the transfers of engine {{{{ $labels.engine }}}} on {{{{ $labels.node }}}} failed.",
        page="kvdiag/checks/eng012_failed_transfers.md",
        dashboard=ENGINE_URL,
    ),
    Alert(
        name="KVTransferNIXLErrors",
        severity="warning",
        # Cancelled transfers and missing telemetry are no faults of the path.
        expr=(
            "sum by (job, node, engine, status) "
            '(increase(kvdiag_nixl_errors_total{status!~"canceled|no_telemetry|repost_active"}[10m])) > 0'
        ),
        hold="1m",
        why="Any: NIXL counts only what a caller was told, after its own retries.",
        summary="NIXL reports failed operations.",
        description=f"{COUNT} operations of engine {{{{ $labels.engine }}}} ended in {{{{ $labels.status }}}}.",
        page="kvdiag/checks/eng012_failed_transfers.md",
        dashboard=ENGINE_URL,
    ),
    Alert(
        name="KVCacheExpired",
        severity="warning",
        # SGLang's deferred releases are how it waits for a transfer, not a loss.
        expr=(
            "sum by (job, node, engine, kind) "
            '(increase(kvdiag_engine_kv_expired_total{kind!~"deferred_release.*"}[10m])) > 0'
        ),
        hold="1m",
        why="Any: each one is a prompt computed twice.",
        summary="KV caches expire before decode fetches them.",
        description=f"{COUNT} of kind {{{{ $labels.kind }}}} at engine {{{{ $labels.engine }}}} in 10 minutes.",
        page="kvdiag/checks/eng010_expired_blocks.md",
        dashboard=ENGINE_URL,
    ),
    Alert(
        name="KVTransferSlowerThanBefore",
        severity="warning",
        # Twice the usual, and by at least 20 ms: what nobody waits for is no news.
        expr=f"{_P99} > 2 * {_BASELINE} and {_P99} - {_BASELINE} > 0.02",
        hold="10m",
        why="Judgement: less than twice may be the noise of a p99 over few transfers; less than 20 ms nobody notices.",
        summary="The slowest transfers of a pair take twice as long as on the day before.",
        description=f"p99 from {{{{ $labels.prefill_node }}}} to {{{{ $labels.decode_node }}}} is {SECONDS}.",
        page="docs/runbooks/KVTransferSlow.md",
        dashboard=PAIR_URL,
    ),
    Alert(
        name="KVTransferEngineSlowerThanBefore",
        severity="warning",
        expr=f"{_ENGINE_P99} > 2 * {_ENGINE_BASELINE} and {_ENGINE_P99} - {_ENGINE_BASELINE} > 0.02",
        hold="10m",
        why="Judgement, the same as of a pair.",
        summary="The slowest transfers of an engine take twice as long as on the day before.",
        description=f"p99 of engine {{{{ $labels.engine }}}} on {{{{ $labels.node }}}} is {SECONDS}.",
        page="docs/runbooks/KVTransferSlow.md",
        dashboard=ENGINE_URL,
    ),
    Alert(
        name="KVTransferPairSlow",
        severity="warning",
        # Fewer than four pairs make no norm.
        expr=(
            f"({_P99} > on () group_left () 3 * quantile(0.5, {_P99})) and on () count({_P99}) >= 4 "
            f"and {_P99} - on () group_left () quantile(0.5, {_P99}) > 0.02"
        ),
        hold="10m",
        why="Judgement: like nodes take like times. Four pairs make a median; below 20 ms nobody notices.",
        summary="One pair of nodes is three times slower than the others.",
        description=f"p99 from {{{{ $labels.prefill_node }}}} to {{{{ $labels.decode_node }}}} is {SECONDS}.",
        page="docs/runbooks/KVTransferSlow.md",
        dashboard=PAIR_URL,
    ),
    Alert(
        name="KVTransferPostingSlow",
        severity="warning",
        expr=f"({_stage('post')} / ({_stage('wire')} > 0)) > 0.5 and {_RATE} > 0.05",
        hold="10m",
        why="Judgement: descriptors of a useful size are posted in far less time than their bytes take.",
        summary="Posting descriptors takes over half as long as moving their bytes.",
        description=(
            "From {{ $labels.prefill_node }} to {{ $labels.decode_node }} posting takes "
            + VALUE
            + " times the wire's time."
        ),
        page="kvdiag/checks/eng030_small_descriptors.md",
        dashboard=PAIR_URL,
    ),
    Alert(
        name="KVTTFTFromFabric",
        severity="warning",
        expr='sum by (job, instance) (kvdiag_ttft_variance_share{cause=~"fabric[.].+"}) > 0.3',
        hold="10m",
        why="Judgement: below a third, queues and prompt lengths are the better lever.",
        summary="The fabric explains a large part of the variance of time to first token.",
        description=f"{PERCENT} of the variance that {{{{ $labels.instance }}}} sees has causes in the fabric.",
        page="docs/runbooks/KVTTFTVaries.md",
        dashboard=_SHARE_URL,
    ),
    Alert(
        name="KVTTFTFromRegistration",
        severity="warning",
        expr=('sum by (job, instance) (kvdiag_ttft_variance_share{cause=~"(registration|connection)[.].+"}) > 0.3'),
        hold="10m",
        why="Judgement, as for the fabric: below a third there is more to gain elsewhere.",
        summary="Registration or connections explain a large part of the variance of time to first token.",
        description=f"{PERCENT} of the variance at {{{{ $labels.instance }}}} comes from registering or connecting.",
        page="docs/runbooks/KVTTFTVaries.md",
        dashboard=_SHARE_URL,
    ),
)
