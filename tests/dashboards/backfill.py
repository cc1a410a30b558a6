"""Ten minutes of every series that dashboards may ask for, as OpenMetrics text with times, ready for Prometheus."""

import itertools
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from dashboards.alerting.recordings import RECORDINGS
from dashboards.queries import SOURCES
from kvdiag.model.transfer import STAGES
from kvdiag_exporters.catalog import Kind, metrics
from kvdiag_exporters.engines import maps
from kvdiag_exporters.engines.metrics import BY_NAME
from tests.dashboards.situations import SITUATIONS

STEP_S = 60
SAMPLES = 11
PER_MINUTE = 60.0
FIXTURES = Path(__file__).parents[1] / "fixtures/engines"
RECORDED = {
    "vllm": ("vllm-decode-tbf200-before.txt", "vllm-decode-tbf200-after.txt"),
    "vllm-mooncake": ("vllm-decode-mooncake.txt",),
    "vllm-push": ("vllm-prefill-push.txt",),
    "vllm-killed": ("vllm-decode-prefill-killed.txt",),
    "nixl": ("nixl-initiator.txt",),
    "exporter": ("../../exporters/golden/metrics.txt",),
}
"""Expositions recorded from running programs; where there is one only, its counters are halved for the time before."""

VALUES: dict[str, tuple[str, ...]] = {
    "node": ("p1", "d1"),
    "peer": ("d1",),
    "prefill_node": ("p1",),
    "decode_node": ("d1", "d2"),
    "stage": tuple(stage.removesuffix("_s") for stage in STAGES),
    "kind": ("nixl", "ttft", "kv_fetch_in_progress", "mr", "qp"),
    "cause": ("fabric.loss", "registration.on_path"),
    "severity": ("critical",),
    "state": ("RTS", "ERR"),
    "direction": ("transmit", "receive"),
    "to": ("up", "down"),
    "role": ("decode",),
    "evidence": ("measured",),
}
_BOUNDS = (0.001, 0.01, 0.1, 1.0, 10.0)
_VALUE = 0.05
Line = tuple[str, dict[str, str], list[float]]


def text(end_s: int, *, jobs: tuple[str, ...]) -> str:
    """Return the series of the jobs named: kvdiag, idle (without traffic), a source, a recorded one, or an alert's."""
    lines: list[str] = []
    for job in jobs:
        for name, labels, values in _series(job):
            tags = ",".join(
                f'{key}="{value}"' for key, value in ({"job": job, "instance": f"{job}:1"} | labels).items()
            )
            start_s = end_s - STEP_S * (len(values) - 1)
            lines += [f"{name}{{{tags}}} {value!r} {start_s + STEP_S * i}" for i, value in enumerate(values)]
    return "\n".join([*lines, "# EOF", ""])


def _series(job: str) -> Iterator[Line]:
    if job in ("kvdiag", "idle"):
        yield from _catalogue(PER_MINUTE if job == "kvdiag" else 0.0)
    elif job in SOURCES:
        yield from _mapped(job)
    elif job in SITUATIONS:
        yield from ((name, labels | {"job": job}, values) for name, labels, values in SITUATIONS[job].lines())
    else:
        yield from _recorded(job.removesuffix("-recorded"))


def _catalogue(per_minute: float) -> Iterator[Line]:
    yield "up", {}, [1.0] * SAMPLES
    for metric in metrics():
        for values in itertools.product(*(VALUES.get(label, ("x",)) for label in metric.labels)):
            yield from _one(metric.name, metric.kind, dict(zip(metric.labels, values, strict=True)), per_minute)
    for one in RECORDINGS:
        chosen = {label: VALUES.get(label, ("x",))[0] for label in one.labels if label not in ("job", "instance")}
        yield one.name, chosen, [_VALUE] * SAMPLES


def _mapped(source: str) -> Iterator[Line]:
    for one in maps.load():
        if one.source == source:
            for row in one.series:
                kind = BY_NAME[row.metric].kind
                name = row.names[0] + ("_total" if kind == "counter" else "")
                yield from _one(name, kind, dict.fromkeys(row.kind_labels, "x"), PER_MINUTE)


def _one(name: str, kind: Kind, labels: dict[str, str], per_minute: float) -> Iterator[Line]:
    grown = [1000.0 + per_minute * i for i in range(SAMPLES)]
    if kind == "gauge":
        yield name, labels, [1.0] * SAMPLES
    elif kind == "counter":
        yield name, labels, grown
    else:
        for bound in _BOUNDS:
            yield f"{name}_bucket", {**labels, "le": f"{bound:g}"}, grown if bound >= _VALUE else [0.0] * SAMPLES
        yield f"{name}_bucket", {**labels, "le": "+Inf"}, grown
        yield f"{name}_count", labels, grown
        yield f"{name}_sum", labels, [_VALUE * value for value in grown]


def _recorded(source: str) -> Iterator[Line]:
    texts = [(FIXTURES / name).read_text() for name in RECORDED[source]]
    earlier, later = (_samples(texts[0]), _samples(texts[-1]))
    for (name, labels), value in later.items():
        before = earlier.get((name, labels), 0.0)
        yield name, dict(labels), [before / 2 if len(texts) == 1 else before, value]


def _samples(exposition: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
