"""The whole exposition of one host, as text and as a document."""

import json
import math
import os
import shutil
import subprocess
from pathlib import Path

import jsonschema
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as text_string_to_open_families
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector as RegistryCollector

import kvdiag
from kvdiag.report.json import encode, published_schema
from kvdiag_exporters.catalog import Buckets, Metric, Sample, metrics
from kvdiag_exporters.collectors.base import Setup, create_all
from kvdiag_exporters.document import build_document
from kvdiag_exporters.exposition import all_samples, exposed, families
from kvdiag_exporters.metrics_page import build_page
from kvdiag_exporters.scraper import Collection, Scraper
from tests.exporters.host import write_host

GOLDEN = Path(__file__).parent / "golden/metrics.txt"


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return write_host(tmp_path)


@pytest.fixture
def collection(setup: Setup) -> Collection:
    return Scraper(create_all(setup), setup.clock).collect()


def text_of(collection: Collection) -> str:
    return exposed(all_samples(collection, collection.monotonic_s))


def test_the_whole_text_is_the_checked_in_one(collection: Collection) -> None:
    """KVDIAG_UPDATE_GOLDEN=1 rewrites it."""
    text = text_of(collection).replace(kvdiag.__version__, "VERSION")
    if os.environ.get("KVDIAG_UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


@pytest.mark.component
def test_promtool_finds_nothing_to_complain_about(collection: Collection) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text_of(collection), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_collector_worked_and_every_metric_of_the_catalogue_has_its_kind(collection: Collection) -> None:
    names = (
        "engine_pod",
        "engine_process",
        "exporter_self",
        "host_pressure",
        "netdev",
        "nic",
        "nic_ethtool",
        "nixl",
        "rdma_limits",
        "rdma_resources",
        "records",
    )
    assert {name: outcome.error for name, outcome in collection.outcomes.items()} == dict.fromkeys(names, "")
    kinds = {metric.name.removesuffix("_total"): metric.kind for metric in metrics()}
    for family in text_string_to_metric_families(text_of(collection)):
        assert kinds[family.name] == family.type
        assert family.documentation


def test_each_series_appears_once(collection: Collection) -> None:
    keys = [(sample.metric.name, sample.labels) for sample in collection.samples]
    assert len(keys) == len(set(keys))


def test_the_document_validates_and_holds_the_same(collection: Collection) -> None:
    document = json.loads(encode(build_document(collection)))
    jsonschema.validate(document, published_schema("kvdiag.exporter-1"))
    assert len(document["samples"]) == len(collection.samples)
    (up,) = [one for one in document["samples"] if one["name"] == "kvdiag_engine_up"]
    assert up["labels"] == {"node": "prefill-0", "engine": "demo", "role": "prefill"}
    assert up["value"] == 1.0
    (ttft,) = [one for one in document["samples"] if one["name"] == "kvdiag_ttft_seconds"]
    assert sum(ttft["histogram"]["counts"]) == 3


def test_no_label_is_a_process_or_a_request(collection: Collection) -> None:
    values = {label for sample in collection.samples for label in sample.labels}
    assert not values & {"121", "130", "a", "b", "c"}


def test_the_catalogue_keeps_to_the_conventions() -> None:
    for metric in metrics():
        assert metric.name.startswith("kvdiag_")
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert metric.help.endswith(".")
        if metric.unit:
            assert metric.name.removesuffix("_total").endswith(f"_{metric.unit}")
        assert metric.unit in ("", "seconds", "bytes", "ratio")


def test_the_page_of_metrics_is_up_to_date() -> None:
    assert (Path(__file__).parents[2] / "docs/metrics.md").read_text() == build_page()


def test_a_sample_with_the_wrong_number_of_labels_is_refused() -> None:
    metric = Metric(name="kvdiag_x", kind="gauge", help="X.", labels=("node",))
    assert metric.sample(math.inf, "a").labels == ("a",)
    with pytest.raises(ValueError, match="kvdiag_x has the labels"):
        metric.sample(1.0)


def test_every_metric_is_a_family_of_its_own_in_openmetrics() -> None:
    """A gauge `a` and a counter `a_total` are one family there, and no parser takes what has it twice."""
    samples = [
        one.sample(Buckets((1.0,), (1, 0), 0.5) if one.kind == "histogram" else 1.0, *("x" for _ in one.labels))
        for one in metrics()
    ]
    found = CollectorRegistry(auto_describe=False)
    found.register(Everything(samples))
    read = list(text_string_to_open_families(generate_latest(found).decode()))  # type: ignore[no-untyped-call]
    assert len(read) == len(samples) > 100


class Everything(RegistryCollector):
    def __init__(self, samples: list[Sample]) -> None:
        self._samples = samples

    def collect(self) -> list[Family]:
        return families(self._samples)
