import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from kvdiag.attribution import diagnose
from kvdiag.cli import main
from kvdiag.derive.overview import overview
from kvdiag.model.bundle import BundleEvent
from kvdiag.model.report import Content, DiagnosedBundle, ReportInput, ReportItem
from kvdiag.report.html import Rendered, render
from kvdiag.report.json import published_schema
from kvdiag.sources.bundle import read_bundle
from kvdiag.sources.report_inputs import TYPES, read_items
from tests.report.html.reading import Page, read, rows_of
from tests.report.html.samples import KINDS, RECORDED

BUNDLES = RECORDED.parent / "bundles"
HOSTILE = "\"><img src=x onerror=alert(1)></script><script>alert(2)</script>'{{7*7}}\x1b[2J\u202e${alert(3)}"
SECTIONS = {
    "preflight": ["Findings", "What was checked"],
    "bandwidth": ["Against size", "Figures", "The run", "Limits and baseline", "Proof of the transport"],
    "latency": ["Against size", "Figures", "The run", "Proof of the transport"],
    "kv": ["One request", "Layouts", "What a descriptor costs", "Proof of the transport"],
    "register": ["Against size", "Regions, threads, devices", "Limits"],
    "connections": ["Set-up", "Many queue pairs"],
    "cold": ["First against steady", "Not observable here"],
    "compare": ["Methods", "Proof of the transport", "Not observable here"],
    "diagnose": ["TTFT, stage by stage", "Causes", "Pairs, distributions and timelines", "Data and method"],
    "demo": ["What was done, what was found", "TTFT, stage by stage", "Causes", "Pairs, distributions and timelines",
             "Data and method"],
}  # fmt: skip
CHARTS = {
    "preflight": 0,
    "bandwidth": 3,
    "latency": 3,
    "kv": 2,
    "register": 1,
    "connections": 2,
    "cold": 1,
    "compare": 2,
    "diagnose": 3,
    "demo": 3,
}
FIRST = (
    "TTFT, stage by stage",
    "Causes",
    "Prefill × decode pairs",
    "Latency distributions",
    "Timelines",
    "Data and method",
)


def rendered(*items: ReportItem) -> Rendered:
    return render(items, version="1.2.3", host="here", time="2026-11-29T12:00:00.000Z")


def document(name: str) -> ReportItem:
    (item,) = read_items(RECORDED / f"{name}.json")
    return item


def diagnosed(name: str) -> ReportItem:
    bundle = read_bundle(BUNDLES / name)
    found = diagnose(bundle)
    about = ReportInput(path=f"bundles/{name}", kind="trace bundle", bytes=1, modified="2026-11-29T12:00:00Z",
                        made_by=None, made_on=None, made_at=None, notes=("no events",))  # fmt: skip
    return ReportItem(input=about, content=DiagnosedBundle(diagnosis=found, overview=overview(bundle, found)))


@pytest.fixture(scope="module")
def bundle_item() -> ReportItem:
    return diagnosed("fabric.tcp_fallback-severe")


@pytest.fixture(scope="module")
def bundle_html(bundle_item: ReportItem) -> str:
    return rendered(bundle_item).html


def sections_of(page: Page) -> list[str]:
    return [text for text in page.said("h3") if not text.startswith(("Do next", "Collect next"))]


def assert_alone(html: str) -> Page:
    """Assert that the page is well formed, loads nothing, and runs nothing but its own scripts."""
    page = read(html)
    assert page.unclosed == []
    for tag, attributes in page.elements:
        assert tag not in ("img", "iframe", "link", "object", "embed", "base", "form", "svg"), (tag, attributes)
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        assert "src" not in attributes and "srcset" not in attributes
        assert (attributes.get("href") or "#").startswith("#"), attributes
    (css,) = page.texts["style"]
    assert "url(" not in css and "@import" not in css
    policy = next(one["content"] for _, one in page.elements if one.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and policy.startswith("default-src 'none'") and "http" not in policy
    data, *scripts = page.texts["script"]
    assert json.loads(data) and len(scripts) == 2 and page.count("script") == 3
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    return page


@pytest.mark.parametrize("name", KINDS)
def test_recorded_documents_keep_their_published_schemas(name: str) -> None:
    raw = json.loads((RECORDED / f"{name}.json").read_text())
    jsonschema.validate(raw, published_schema(raw["schema"].replace("/", "-")))


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_has_its_verdict_sections_and_charts(name: str) -> None:
    found = rendered(document(name))
    page = assert_alone(found.html)
    assert sections_of(page) == SECTIONS[name]
    assert len(page.specs) == CHARTS[name] == sum("data-chart" in one for _, one in page.elements)
    assert all(rows_of(spec) for spec in page.specs)
    (sentence,) = [text for text in page.said("p") if text == found.summaries[0].found]
    # The verdict comes before everything else, and says what to do next.
    assert found.html.index('class="sentence"') < found.html.index('class="section"')
    assert "Do next" in page.said("h3") or "Collect next" in page.said("h3")
    assert sentence in found.html.replace("&#39;", "'")


def test_a_bundle_has_every_section_and_what_was_binned(bundle_html: str) -> None:
    page = assert_alone(bundle_html)
    assert sections_of(page) == list(FIRST)
    titles = page.said("figcaption")
    assert titles[:3] == ["Mean TTFT by stage", "Share of TTFT variance", "Added to mean TTFT, over the baseline"]
    assert {"TTFT", "KV hand-over", "TTFT by arrival", "Change against the baseline"} <= set(titles)
    # The counter that the verdict cites is drawn.
    assert any(title.startswith("host.tcp_rx_bytes per second") for title in titles)
    assert all(rows_of(spec) for spec in page.specs) and len(page.specs) == len(titles)
    assert any(line.startswith("timelines: ") for line in page.said("li"))
    assert "not observable here: the recording has none" in page.said("p")
    assert "no events" in page.said("td")


def test_a_reader_is_sent_to_no_file_that_the_page_lacks(bundle_html: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = re.findall("More: <code>(.*?)</code>", bundle_html)
    assert said and not [text for text in said if "docs/" in text]
    for command in set(said):
        assert main(command.split()[1:]) == 0
    assert "What to do" in capsys.readouterr().out


def test_a_healthy_bundle_says_that_nothing_is_to_be_done() -> None:
    found = rendered(diagnosed("none-09"))
    assert found.summaries[0].state in ("good", "unknown")
    page = assert_alone(found.html)
    assert sections_of(page) == list(FIRST)


def test_several_inputs_have_an_index_with_their_states(bundle_item: ReportItem) -> None:
    items = [bundle_item, *(document(name) for name in KINDS)]
    found = rendered(*items)
    page = assert_alone(found.html)
    links = [one["href"] for tag, one in page.elements if tag == "a"]
    places = {one["id"] for _, one in page.elements if "id" in one}
    assert {f"#part-{number}" for number in range(1, len(items) + 1)} <= set(links)
    assert {str(link).removeprefix("#") for link in links} <= places
    assert found.summaries[0].state == "critical"
    assert [one.input for one in found.summaries] == [item.input for item in items]
    paths = page.said("code")
    assert all(item.input.path in paths for item in items)


def test_one_input_needs_no_index() -> None:
    assert read(rendered(document("cold")).html).count("nav") == 0


def test_the_same_inputs_give_the_same_page(bundle_item: ReportItem, bundle_html: str) -> None:
    assert rendered(bundle_item).html == bundle_html


def leaves(value: Any, set_: Callable[[Any], None]) -> Iterator[tuple[str, Callable[[Any], None]]]:
    """Yield every string of a JSON value, and what replaces it."""
    if isinstance(value, str):
        yield value, set_
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from leaves(one, lambda new, number=number: value.__setitem__(number, new))  # type: ignore[misc]
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from leaves(one, lambda new, key=key: value.__setitem__(key, new))  # type: ignore[misc]


@pytest.mark.parametrize("name", KINDS)
def test_no_string_of_a_document_becomes_markup(name: str) -> None:
    raw = json.loads((RECORDED / f"{name}.json").read_text())
    kind = TYPES[raw["schema"].partition("/")[0]]
    spoiled = 0
    for text, put in list(leaves(raw, lambda _: None)):
        put(text + HOSTILE)
        try:
            msgspec.convert(raw, kind)
            spoiled += 1
        except msgspec.ValidationError:  # a fixed set of words: nobody else's text can stand there
            put(text)
    assert spoiled > 15
    content: Content = msgspec.convert(raw, kind)
    about = ReportInput(path=HOSTILE, kind=HOSTILE, bytes=1, modified=HOSTILE, made_by=HOSTILE, made_on=HOSTILE,
                        made_at=HOSTILE, notes=(HOSTILE,))  # fmt: skip
    html = render([ReportItem(input=about, content=content)], version=HOSTILE, host=HOSTILE, time=HOSTILE).html
    page = assert_alone(html)
    assert any("<img src=x onerror=alert(1)>" in text for text in page.said("td"))
    assert "\x1b" not in html and "\u202e" not in html and "{{7*7}}" in html


def numbers(value: Any, wild: float) -> Any:
    """Return a JSON value with every number in it replaced."""
    if isinstance(value, dict):
        return {key: numbers(one, wild) for key, one in value.items()}
    if isinstance(value, list):
        return [numbers(one, wild) for one in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return type(value)(wild) if abs(wild) < 1e18 or isinstance(value, float) else 10**15


@pytest.mark.parametrize("wild", [0, -1, 10**18, 1e308])
@pytest.mark.parametrize("name", KINDS)
def test_numbers_that_cannot_be_are_drawn_somehow(name: str, wild: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvdiag.report.html.page.chart_library", lambda: "/* charts */")
    raw = json.loads((RECORDED / f"{name}.json").read_text())
    kind = TYPES[raw["schema"].partition("/")[0]]
    content: Content = msgspec.convert(numbers(raw, wild), kind, strict=False)
    page = read(rendered(ReportItem(input=document(name).input, content=content)).html)
    assert json.dumps(page.specs, allow_nan=False) and len(page.specs) <= CHARTS[name]


def emptied(value: Any) -> Any:
    """Return a JSON value whose lists are empty, and what may be null is."""
    if isinstance(value, dict):
        return {key: emptied(one) for key, one in value.items()}
    return [] if isinstance(value, list) else value


@pytest.mark.parametrize("name", KINDS)
def test_a_document_of_nothing_says_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvdiag.report.html.page.chart_library", lambda: "/* charts */")
    raw = json.loads((RECORDED / f"{name}.json").read_text())
    content: Content = msgspec.convert(emptied(raw), TYPES[raw["schema"].partition("/")[0]])
    found = rendered(ReportItem(input=document(name).input, content=content))
    page = assert_alone(found.html)
    assert page.specs == [] and page.count("figure") == 0
    assert any(one.get("class") == "empty" for tag, one in page.elements if tag == "div")
    if name in ("bandwidth", "latency", "kv", "compare"):
        assert found.summaries[0].state == "unknown"


def test_hostile_names_in_a_bundle_stay_data() -> None:
    bundle = read_bundle(BUNDLES / "fabric.tcp_fallback-severe")
    requests = bundle.requests
    labels = {
        column: replace(one, names=tuple(name + HOSTILE for name in one.names))
        for column, one in requests.labels.items()
    }
    spoiled = replace(
        bundle,
        requests=replace(requests, labels=labels),
        series=tuple(replace(one, node=one.node + HOSTILE, device=HOSTILE) for one in bundle.series),
        events=(
            BundleEvent(time_s=float(requests.numbers["arrival_s"][9]), node=HOSTILE, kind=HOSTILE, detail=HOSTILE),
        ),
    )
    found = diagnose(spoiled)
    content = DiagnosedBundle(diagnosis=found, overview=overview(spoiled, found))
    html = rendered(ReportItem(input=document("cold").input, content=content)).html
    page = assert_alone(html)
    assert any(HOSTILE[:20] in text for text in page.said("td"))
    assert "\x1b" not in html and "\u202e" not in html
    expressions = re.findall(
        r'"(?:labelExpr|expr|test|filter|calculate)": "((?:[^"\\\\]|\\\\.)*)"', json.dumps(page.specs)
    )
    assert expressions and not [text for text in expressions if "alert" in text]


def test_unicode_that_cannot_be_written_is_made_visible() -> None:
    item = document("cold")
    strange = ReportInput(
        path="bad\udcff.json", kind="k", bytes=0, modified="", made_by=None, made_on=None, made_at=None
    )
    html = rendered(ReportItem(input=strange, content=item.content)).html
    assert "bad\\udcff.json" in html and html.encode()


def test_the_charts_library_is_there_once_and_the_page_is_small(bundle_html: str) -> None:
    assert len(bundle_html) < 1_500_000
    one, three = (len(rendered(*[document("cold")] * count).html) for count in (1, 3))
    assert three - one < 100_000


def test_recorded_documents_name_no_machine_of_ours() -> None:
    for path in Path(RECORDED).glob("*.json"):
        assert not re.search(r"/(work|root|home|tmp)/", path.read_text()), path
