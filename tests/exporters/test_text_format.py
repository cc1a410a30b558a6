"""The text is prometheus-client's own, byte for byte, whatever the values and labels."""

import math
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvdiag_exporters.catalog import Buckets, Metric, Sample
from kvdiag_exporters.collectors.base import create_all
from kvdiag_exporters.engines.normalise import normalise
from kvdiag_exporters.exposition import all_samples, exposed
from kvdiag_exporters.scraper import Scraper
from kvdiag_exporters.text_format import MOST_KEPT, TextFormat
from tests.exporters.host import write_host

ENGINES = Path(__file__).parents[1] / "fixtures/engines"
COUNTER = Metric(name="kvdiag_a_total", kind="counter", help="A \\ of\nlines.", labels=("b", "a"))
GAUGE = Metric(name="kvdiag_b_bytes", kind="gauge", unit="bytes", help="B.", labels=("x",))
PLAIN = Metric(name="kvdiag_c", kind="gauge", help="C.")
HISTOGRAM = Metric(name="kvdiag_d_seconds", kind="histogram", unit="seconds", help="D.", labels=("z", "m"))

texts = st.text(max_size=6)
numbers = st.floats() | st.integers(-(10**20), 10**20).map(float) | st.sampled_from([0.0, -0.0, 1e6, 999999.0, 1e-5])
bounds = st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=4, unique=True).map(sorted).map(tuple)


@st.composite
def histograms(draw: st.DrawFn) -> Sample:
    edges: tuple[float, ...] = draw(bounds)
    counts = draw(st.lists(st.integers(0, 10**9), min_size=len(edges) + 1, max_size=len(edges) + 1))
    return HISTOGRAM.sample(Buckets(edges, tuple(counts), draw(numbers)), draw(texts), draw(texts))


samples = st.lists(
    st.builds(lambda v, a, b: COUNTER.sample(v, a, b), numbers, texts, texts)
    | st.builds(lambda v, a: GAUGE.sample(v, a), numbers, texts)
    | st.builds(lambda v: PLAIN.sample(v), numbers)
    | histograms(),
    max_size=12,
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(samples)
def test_any_samples(found: list[Sample]) -> None:
    text = TextFormat()
    expected = exposed(found).encode()
    assert text.render(found) == expected
    assert text.render(found) == expected  # with the heads of the first time


def test_a_whole_host_and_its_engines(tmp_path: Path) -> None:
    setup = write_host(tmp_path)
    collection = Scraper(create_all(setup), setup.clock).collect()
    found = list(all_samples(collection, collection.monotonic_s))
    found += normalise((ENGINES / "vllm-decode-tbf200-after.txt").read_text(), ("n", "e", "decode")).samples
    assert TextFormat().render(found) == exposed(found).encode()


def test_heads_of_series_that_have_gone_are_forgotten() -> None:
    text = TextFormat()
    text.render(GAUGE.sample(1.0, str(number)) for number in range(MOST_KEPT + 1))
    assert text.render([GAUGE.sample(math.inf, "a")]).endswith(b'kvdiag_b_bytes{x="a"} +Inf\n')
    assert len(text._heads) == 1
