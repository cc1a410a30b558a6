"""KV transfer overview: is anything wrong, what does it do to TTFT, which pair is it?"""

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards import panels
from dashboards.panels import NOT_SEEN, Row, Steps, lines, matrix, number, pair_link, rows_of
from dashboards.queries import (
    ENGINE,
    JOB,
    PAIR,
    SOURCES,
    WIRE,
    Query,
    first_of,
    mean,
    own_level,
    own_quantile,
    own_rate,
    own_rows,
    quantile,
    rate,
    unless_read,
)

TRANSFER = "kvdiag_engine_transfer_seconds"
SIZE = "kvdiag_engine_transfer_size_bytes"
FAILURES = "kvdiag_engine_transfer_failures_total"
EXPIRED = "kvdiag_engine_kv_expired_total"
REQUEST = "kvdiag_engine_request_seconds"
RECORDED = "kvdiag_transfer_stage_seconds"
_ZERO = f"sum(kvdiag_exporter_build_info{{{JOB}}}) * 0"
"""Zero where an exporter is read: nothing found is a value then, and none without one."""

FAILURE_STEPS = Steps(warning=0.001, critical=0.01)
"""The ratio of failed transfers that KVTransferFailing calls critical, and a tenth of it."""


def _own(metric: str, kind: str = "") -> list[str]:
    """Return the engines' own seconds or bytes behind a histogram, one number each, for `first_of`."""
    found = []
    for _, row in own_rows(metric, kind):
        parts = " or ".join(f"rate({name}_bucket{{{JOB}}}[$__rate_interval])" for name in row.names)
        found.append(f"histogram_quantile(%s, sum by (le) ({parts})) * {row.factor:g}".removesuffix(" * 1"))
    return found


def _any_quantile(q: float) -> str:
    return first_of(
        quantile(q, RECORDED, f"{PAIR}, {WIRE}"),
        quantile(q, TRANSFER, f'{ENGINE}, kind!="nixl_post"'),
        *(one % q for one in _own(TRANSFER)),
    )


def _throughput() -> str:
    own = [
        f"sum ({' or '.join(f'rate({name}_sum{{{JOB}}}[$__rate_interval])' for name in row.names)}) * {row.factor:g}"
        for _, row in own_rows(SIZE)
    ]
    moved = [
        f"sum (rate({row.names[0]}_total{{{JOB}}}[$__rate_interval]))"
        for _, row in own_rows("kvdiag_engine_transfer_moved_bytes_total", "read")
    ]
    return first_of(
        rate("kvdiag_transfer_size_bytes_sum", PAIR),
        rate(f"{SIZE}_sum", f'{ENGINE}, evidence!="estimated"'),
        *own,
        *moved,
    )


def _failure_ratio() -> str:
    read = rate(FAILURES, ENGINE)
    done = f"{rate(f'{TRANSFER}_count', ENGINE)} + {read}"
    ratios = [f"{read} / ({done} > 0)"]
    for source, row in own_rows(TRANSFER):
        failed = [f for one, f in own_rows(FAILURES) if one == source and f.kind in (row.kind, "transfer")]
        if failed:
            bad = f"sum (rate({failed[0].names[0]}_total{{{JOB}}}[$__rate_interval]))"
            good = f"sum (rate({row.names[0]}_count{{{JOB}}}[$__rate_interval]))"
            ratios.append(f"{bad} / ({bad} + {good} > 0)")
    return first_of(*ratios)


def _now() -> Row:
    return Row(
        "Is anything wrong now?",
        [
            number(
                "Transfer time p50",
                "Half of the KV transfers take no longer: from per-request records, else from the engines' histograms.",
                "s",
                _any_quantile(0.5),
            ),
            number(
                "Transfer time p99",
                "One KV transfer in a hundred takes longer. Far above p50: the fabric, registration or one sick pair.",
                "s",
                _any_quantile(0.99),
            ),
            number("KV throughput", "Bytes of KV cache moved per second, all pairs together.", "Bps", _throughput()),
            number(
                "Failed transfers",
                "Share of transfers that failed; a request can still answer, after computing its prompt again.",
                "percentunit",
                _failure_ratio(),
                steps=FAILURE_STEPS,
            ),
            number(
                "Open findings",
                "Findings of kvdiag that hold now, notes left out. The pair drill-down lists them with what to do.",
                "short",
                f'count(kvdiag_finding{{{JOB}, severity!="info"}} == 1) or {_ZERO}',
                steps=Steps(1, 5),
                empty="No kvdiag exporter",
            ),
            number(
                "Blind sources",
                "Collectors that failed and engines whose metrics could not be read: what they show may be old.",
                "short",
                f"(count(kvdiag_collector_success{{{JOB}}} == 0) or {_ZERO})"
                f" + (count(kvdiag_engine_metrics_up{{{JOB}}} == 0) or {_ZERO})",
                steps=Steps(1, 3),
                empty="No kvdiag exporter",
            ),
        ],
    )


def _transfers() -> Row:
    by_engine = "node, engine, source, kind"
    return Row(
        "How long do transfers take, how much do they move, and do they fail?",
        [
            lines(
                "Transfer time",
                "From the start of a transfer until its engine saw it complete, by the engine that started it. A busy "
                "engine sees completions late: compare with the utilisation of the ports.",
                "s",
                [
                    Query(quantile(0.5, TRANSFER, ENGINE, by_engine), "{{engine}} {{source}} {{kind}} p50"),
                    Query(quantile(0.99, TRANSFER, ENGINE, by_engine), "{{engine}} {{source}} {{kind}} p99"),
                    *unless_read([*own_quantile(0.5, TRANSFER), *own_quantile(0.99, TRANSFER)], TRANSFER),
                ],
            ),
            lines(
                "KV throughput",
                "Bytes moved per second, counted by the side that starts transfers: a pull by decode, a push by "
                "prefill. "
                "Zero on the other side is no fault.",
                "Bps",
                [
                    Query(rate(f"{SIZE}_sum", ENGINE, by_engine), "{{engine}} {{source}} {{kind}}"),
                    Query(
                        rate("kvdiag_engine_transfer_moved_bytes_total", ENGINE, by_engine),
                        "{{engine}} {{source}} {{kind}}",
                    ),
                    *unless_read(own_rate(SIZE, part="sum"), SIZE),
                    *unless_read(
                        own_rate("kvdiag_engine_transfer_moved_bytes_total"), "kvdiag_engine_transfer_moved_bytes_total"
                    ),
                ],
            ),
            lines(
                "Failures per second",
                "Failed transfers, handshakes and retries by kind. Zero is a value here: the engine counts and "
                "nothing failed.",
                "ops",
                [
                    Query(rate(FAILURES, ENGINE, by_engine), "{{engine}} {{source}} {{kind}}"),
                    *unless_read(own_rate(FAILURES), FAILURES),
                ],
                empty=NOT_SEEN,
            ),
            lines(
                "KV caches that expired, per second",
                "Caches freed before they were fetched, and notices that came too late. Their requests compute the "
                "prompt "
                "again: look at how long decode waits.",
                "ops",
                [
                    Query(rate(EXPIRED, ENGINE, by_engine), "{{engine}} {{source}} {{kind}}"),
                    *unless_read(own_rate(EXPIRED), EXPIRED),
                ],
                empty=NOT_SEEN,
            ),
        ],
    )


def _ttft() -> Row:
    ttft = 'kind="ttft"'
    return Row(
        "Why does time to first token vary?",
        [
            lines(
                "Time to first token",
                "By prefill and decode node from per-request records; from the engines where there are none.",
                "s",
                [
                    Query(
                        quantile(q, "kvdiag_ttft_seconds", PAIR, "prefill_node, decode_node"),
                        f"{{{{prefill_node}}}} → {{{{decode_node}}}} p{q * 100:g}",
                    )
                    for q in (0.5, 0.99)
                ]
                + [
                    Query(
                        quantile(0.99, REQUEST, f"{ENGINE}, {ttft}", "engine, source, role"),
                        "{{engine}} {{source}} {{role}} p99",
                    ),
                    *unless_read(own_quantile(0.99, REQUEST, "ttft"), REQUEST),
                ],
            ),
            lines(
                "Variance of TTFT by cause",
                "Share of the variance of TTFT that each cause explains, in the window of the attribution. Above a "
                "third "
                "for fabric.* or registration.* the network is worth an engineer; below, look at queues and prompts "
                "first.",
                "percentunit",
                [Query(f"max by (cause) (kvdiag_ttft_variance_share{{{JOB}}})", "{{cause}}")],
                stacked=True,
                empty="No attribution: no records, or too few",
            ),
            lines(
                "Where a request's time goes",
                "Mean seconds of each stage per request; stacked they are the mean TTFT of the records.",
                "s",
                [
                    Query(
                        f"{rate(f'{RECORDED}_sum', PAIR, 'stage')} / on () group_left () "
                        f"({rate('kvdiag_ttft_seconds_count', PAIR)} > 0)",
                        "{{stage}}",
                    )
                ],
                stacked=True,
            ),
            lines(
                "Variance of TTFT by stage",
                "Share of the variance that each stage has, exactly; negative where it is short when others are long.",
                "percentunit",
                [Query(f"max by (stage) (kvdiag_ttft_stage_variance_share{{{JOB}}})", "{{stage}}")],
                empty="No attribution: no records, or too few",
            ),
        ],
    )


def _pairs() -> Row:
    worst = quantile(0.99, RECORDED, f"{PAIR}, {WIRE}", "prefill_node, decode_node")
    link = pair_link('${__data.fields["Prefill node"]}', '${__data.fields["Decode node"]}')
    return Row(
        "Which pair is slow?",
        [
            matrix(
                "Transfer time p99, prefill × decode",
                "Seconds on the wire between each two nodes. A red row is a prefill node, a red column a decode "
                "node, one "
                "red cell a path between them.",
                "s",
                worst,
                rows="prefill_node",
                columns="decode_node",
                steps=Steps(0.1, 0.5),
            ),
            rows_of(
                "The slowest pairs",
                "The twenty pairs with the longest transfers at p99; a click opens the pair with its ports.",
                "s",
                f"topk(20, {worst})",
                names={"prefill_node": "Prefill node", "decode_node": "Decode node", "Value": "Transfer p99"},
                link=("Open this pair", link),
            ),
        ],
    )


def _engine_row(source: str) -> Row:
    """Return what one engine reports itself, for those who scrape it without kvdiag."""
    name = SOURCES[source]
    waiting = own_level("kvdiag_engine_requests", "kv_.*|waiting", source)
    failures = [*own_rate(FAILURES, source=source), *own_rate(EXPIRED, source=source)]
    times = [
        *own_quantile(0.99, TRANSFER, source=source),
        *own_quantile(0.99, "kvdiag_engine_transfer_post_seconds", source=source),
        *own_quantile(0.99, "kvdiag_engine_transfer_wait_seconds", source=source),
        *own_quantile(0.99, "kvdiag_engine_transfer_upper_bound_seconds", source=source),
    ]
    found = []
    if times:
        tells = (
            f"{name}'s own histograms of transfers, of posting and of waiting, and upper bounds where it has no more."
        )
        found.append(lines("Transfer, posting and waiting p99", tells, "s", times))
    if waiting:
        tells = f"Requests that {name} holds back, those for a KV cache among them."
        found.append(lines("Requests waiting", tells, "short", waiting, empty=NOT_SEEN))
    if failures:
        tells = f"What {name} counts as failed or expired."
        found.append(lines("Failed and expired per second", tells, "ops", failures, empty=NOT_SEEN))
    return Row(f"What does {name} report itself? (scraped without kvdiag)", found, collapsed=True)


def build() -> Dashboard:
    """Return the dashboard that is opened first."""
    waiting = Row(
        "Do requests wait for their KV cache?",
        [
            lines(
                "Requests by what they wait for",
                "Requests that wait, by engine: for admission, for a peer, for their KV cache.",
                "short",
                [
                    Query(
                        f'sum by (engine, source, kind) (kvdiag_engine_requests{{{ENGINE}, kind=~"kv_.*|waiting.*"}})',
                        "{{engine}} {{source}} {{kind}}",
                    )
                ],
                empty=NOT_SEEN,
            ),
            lines(
                "Mean wait before and after transfers",
                "Time that engines spend beside the transfer itself: meeting the peer, finding memory.",
                "s",
                [
                    Query(
                        mean("kvdiag_engine_transfer_wait_seconds", ENGINE, "engine, source, kind"),
                        "{{engine}} {{source}} {{kind}}",
                    )
                ],
            ),
        ],
        collapsed=True,
    )
    return panels.dashboard(
        "kvdiag-overview",
        "kvdiag / KV transfer overview",
        "KV cache transfers between prefill and decode, and what they do to time to first token.",
        [panels.JOB, panels.ENGINE, panels.SRC, panels.DST],
        [_now(), _transfers(), _ttft(), _pairs(), waiting, *(_engine_row(source) for source in SOURCES)],
    )
