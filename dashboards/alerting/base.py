"""What an alert and a recording rule are."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["critical", "warning", "info"]
"""critical: page somebody now; warning: act in working hours; info: to be seen only while looking."""

PAIR_URL = "/d/kvdiag-pair?var-src={{ $labels.prefill_node }}&var-dst={{ $labels.decode_node }}"
FABRIC_URL = "/d/kvdiag-fabric?var-node={{ $labels.node }}"
PORT_URL = f"{FABRIC_URL}&var-device={{{{ $labels.device }}}}&var-port={{{{ $labels.port }}}}"
ENGINE_URL = "/d/kvdiag-overview?var-engine={{ $labels.engine }}"
EXPORTER_URL = "/d/kvdiag-exporter?var-job={{ $labels.job }}"
COUNT = '{{ printf "%.0f" $value }}'
VALUE = '{{ printf "%.2f" $value }}'
PERCENT = "{{ $value | humanizePercentage }}"
SECONDS = "{{ $value | humanizeDuration }}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A series that Prometheus computes once for alerts and panels: `level:metric:operation`, and its labels."""

    name: str
    expr: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """`hold` is Prometheus's `for`, `why` where the threshold comes from; `page` the runbook's path in the repository;
    `dashboard` where to look first. `summary` is the same for every instance, `description` names the one with its
    number.
    """

    name: str
    severity: Severity
    expr: str
    hold: str
    why: str
    summary: str
    description: str
    page: str
    dashboard: str
