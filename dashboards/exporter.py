"""kvdiag itself: does it see everything, how old is what it shows, what does it cost?"""

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards import panels
from dashboards.panels import NOT_SEEN, AnyPanel, Row, Steps, lines, number, rows_of
from dashboards.queries import JOB, NODE, Query, rate


def _gauge(title: str, tells: str, unit: str, name: str, labels: str, *, width: int = 12) -> AnyPanel:
    legend = " ".join(f"{{{{{label}}}}}" for label in labels.split(", "))
    return lines(
        title, tells, unit, [Query(f"max by ({labels}) ({name}{{{JOB}}})", legend)], width=width, empty=NOT_SEEN
    )


def _sees() -> Row:
    return Row(
        "Does every exporter see what it should?",
        [
            number(
                "Exporters",
                "Exporters that Prometheus reads now.",
                "short",
                f"count(kvdiag_exporter_build_info{{{JOB}}})",
                width=8,
                empty="None",
            ),
            number(
                "Collectors that failed",
                "Their series are absent or old; /healthz of the exporter says why.",
                "short",
                f"count(kvdiag_collector_success{{{JOB}}} == 0) or sum(kvdiag_exporter_build_info{{{JOB}}}) * 0",
                steps=Steps(1, 3),
                width=8,
                empty="No exporter",
            ),
            number(
                "Oldest data",
                "Age of the oldest collector's last complete data.",
                "s",
                f"max(kvdiag_collector_data_age_seconds{{{JOB}}})",
                steps=Steps(30, 120),
                width=8,
                empty="No exporter",
            ),
            _gauge(
                "Age of the data",
                "Seconds since a collector's last complete data: a line that climbs is a collector that hangs.",
                "s",
                "kvdiag_collector_data_age_seconds",
                "instance, collector",
            ),
            _gauge(
                "Things that could not be observed",
                "Per collector; /healthz names each with the reason. Not zero is common: an absent card, a missing "
                "right.",
                "short",
                "kvdiag_collector_missing",
                "instance, collector",
            ),
            rows_of(
                "Collectors",
                "1 where the last collection worked, by instance and collector.",
                "short",
                f"min by (instance, collector) (kvdiag_collector_success{{{JOB}}})",
                names={"instance": "Instance", "collector": "Collector", "Value": "Worked"},
                width=24,
                empty="No exporter",
            ),
        ],
    )


def _engines() -> Row:
    return Row(
        "Are the engines' own metrics read and understood?",
        [
            _gauge(
                "Engines read",
                "1 where the engine's metrics were read and understood.",
                "short",
                "kvdiag_engine_metrics_up",
                "node, engine, target",
                width=8,
            ),
            lines(
                "Names and series left off",
                "unmapped: names of a newer version than this exporter knows; broken: series that contradict "
                "themselves.",
                "short",
                [
                    Query(
                        f"max by (node, engine, source) (kvdiag_engine_unmapped_names{{{NODE}}})",
                        "{{engine}} {{source}} unmapped",
                    ),
                    Query(f"max by (node, engine) (kvdiag_engine_broken_series{{{NODE}}})", "{{engine}} broken"),
                ],
                width=8,
                empty=NOT_SEEN,
            ),
            lines(
                "Series that mislead or cannot be",
                "By reason; impossible ones are left off, misleading ones are passed on.",
                "short",
                [Query(f"sum by (node, reason) (kvdiag_metric_suspect_series{{{NODE}}})", "{{node}} {{reason}}")],
                width=8,
                empty="None",
            ),
        ],
    )


def _lost() -> Row:
    return Row(
        "Is anything dropped on the way?",
        [
            lines(
                "Records read and dropped per second",
                "Per-request records. duplicate: seen before; invalid: no record.",
                "ops",
                [
                    Query(rate("kvdiag_records_read_total", JOB, "instance"), "{{instance}} read"),
                    Query(rate("kvdiag_records_dropped_total", JOB, "instance, reason"), "{{instance}} {{reason}}"),
                    Query(rate("kvdiag_recorder_lost_lines_total", JOB, "instance"), "{{instance}} not recorded"),
                ],
                width=8,
                empty="No records",
            ),
            _gauge(
                "Records not read yet",
                "Bytes of record files behind the reader.",
                "bytes",
                "kvdiag_records_backlog_bytes",
                "instance",
                width=8,
            ),
            lines(
                "NIXL telemetry: full rings and dropped events",
                "A ring at 1 drops every further event and its totals stand still; dropped counts what NIXL itself "
                "lost.",
                "short",
                [
                    Query(f"max by (node, engine) (kvdiag_nixl_ring_fill_ratio{{{NODE}}})", "{{engine}} ring"),
                    Query(rate("kvdiag_nixl_dropped_events_total", NODE, "node, engine"), "{{engine}} dropped/s"),
                ],
                width=8,
                empty=NOT_SEEN,
            ),
        ],
    )


def _records() -> Row:
    return Row(
        "Are requests put together, and are their causes told?",
        [
            lines(
                "Requests given on per second",
                "joined: both sides came; unjoined: one never did, so that only its own stages are known.",
                "ops",
                [Query(rate("kvdiag_records_requests_total", JOB, "instance, result"), "{{instance}} {{result}}")],
                width=8,
                empty="Nothing is joined",
            ),
            lines(
                "Pieces and lines dropped per second",
                "Pieces by reason: late, repeated, excess, nameless. Evicted requests were given on before their time.",
                "ops",
                [
                    Query(
                        rate("kvdiag_records_pieces_dropped_total", JOB, "instance, reason"), "{{instance}} {{reason}}"
                    ),
                    Query(rate("kvdiag_records_invalid_lines_total", JOB, "instance"), "{{instance}} invalid lines"),
                    Query(rate("kvdiag_records_evicted_total", JOB, "instance"), "{{instance}} evicted"),
                ],
                width=8,
                empty="Nothing is joined",
            ),
            lines(
                "Confidence of the last verdict",
                "By status: cause, no_change, or abstain, which says what to collect instead.",
                "percentunit",
                [
                    Query(
                        f"max by (instance, status) (kvdiag_attribution_confidence_ratio{{{JOB}}})",
                        "{{instance}} {{status}}",
                    )
                ],
                width=8,
                top=1,
                empty="No attribution: no records, or too few",
            ),
        ],
    )


def _cost() -> Row:
    return Row(
        "What does watching cost?",
        [
            lines(
                "Processor",
                "Share of one core that the exporter itself uses.",
                "percentunit",
                [Query(rate("kvdiag_exporter_cpu_seconds_total", JOB, "instance"), "{{instance}}")],
                width=8,
                empty=NOT_SEEN,
            ),
            _gauge(
                "Memory",
                "Resident memory of the exporter.",
                "bytes",
                "kvdiag_exporter_resident_memory_bytes",
                "instance",
                width=8,
            ),
            _gauge(
                "Time of a collection",
                "By collector. One that nears 5 s is given up.",
                "s",
                "kvdiag_collector_duration_seconds",
                "instance, collector",
                width=8,
            ),
        ],
    )


def build() -> Dashboard:
    """Return the dashboard that says whether the others can be believed."""
    return panels.dashboard(
        "kvdiag-exporter",
        "kvdiag / kvdiag itself",
        "What the exporters see, how old it is, what they drop and what they cost.",
        [panels.JOB, panels.NODE],
        [_sees(), _engines(), _lost(), _records(), _cost()],
    )
