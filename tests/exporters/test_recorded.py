"""Which samples become which names of a trace bundle, where that depends on their labels."""

from pathlib import Path

from kvdiag_exporters.catalog import Sample, metrics
from kvdiag_exporters.collectors.nic_ethtool import PAUSED
from kvdiag_exporters.engines.metrics import BY_NAME
from kvdiag_exporters.engines.normalise import normalise
from kvdiag_exporters.recorder import chosen, number

ENGINES = {"p": "prefill-0", "d": "decode-0"}
NODES = {"prefill-0": "prefill", "decode-0": "decode", "host": "both"}


def recorded(samples: list[Sample]) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for sample, how, node in chosen(samples, ENGINES, NODES):
        found[node, how.name] = found.get((node, how.name), 0.0) + number(sample.value, how) * how.scale
    return found


def requests(engine: str, role: str, **kinds: float) -> list[Sample]:
    metric = BY_NAME["kvdiag_engine_requests"]
    return [
        metric.sample(value, "x", engine, role, "vllm", "0", kind, "request", "measured")
        for kind, value in kinds.items()
    ]


def test_queues_are_recorded_by_role_and_kind() -> None:
    samples = [
        *requests("p", "prefill", waiting=7, running=3, kv_fetch_in_progress=1),
        *requests("d", "decode", waiting=9, waiting_capacity=4, waiting_deferred=5, running=2),
        *requests("d", "decode", kv_fetch_waiting_to_start=6, kv_fetch_in_progress=8, kv_fetch_completed_waiting=1),
    ]
    assert recorded(samples) == {
        ("prefill-0", "engine.prefill_queue_depth"): 7,
        ("decode-0", "engine.admit_queue_depth"): 4,
        ("decode-0", "engine.pull_queue_depth"): 6,
        ("decode-0", "engine.pulls_in_flight"): 8,
    }


def test_a_recorded_engine_gives_the_queues_that_diagnose_reads() -> None:
    fixtures = Path(__file__).parents[1] / "fixtures/engines"
    samples = normalise((fixtures / "vllm-decode-tbf200-after.txt").read_text(), ("x", "d", "decode")).samples
    assert {name for _, name in recorded(samples)} >= {"engine.admit_queue_depth"}


def test_only_pauses_that_stop_this_host_are_recorded() -> None:
    samples = [
        PAUSED.sample(2.0, "host", "eth0", "receive", "3"),
        PAUSED.sample(0.5, "host", "eth0", "receive", "4"),
        PAUSED.sample(9.0, "host", "eth0", "transmit", "3"),
    ]
    assert recorded(samples) == {("host", "nic.pause_us"): 2.5e6}


def test_where_names_only_labels_that_there_are() -> None:
    for metric in metrics():
        for how in metric.recorded:
            assert {name for name, _ in how.where} <= set(metric.labels), metric.name
