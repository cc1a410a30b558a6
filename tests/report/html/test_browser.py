"""The report in a real Chromium: drawn without an error or a request, at any width, light, dark and on paper."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from kvdiag.cli import main
from tests.report.html.reading import read
from tests.report.html.samples import BUNDLE, RECORDED

pytestmark = [pytest.mark.component, pytest.mark.xdist_group("browser")]

CHROMIUM = "chromium"
INPUTS = ("preflight", "bandwidth", "kv", "register", "connections")
READY_MS = 120_000
ACTION_MS = 20_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which(CHROMIUM)
    assert program, "the Debian package chromium is not installed: see TEST_PACKAGES in the Makefile"
    # Without a sandbox: root may not start one, and the pages are ours.
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    repository = RECORDED.parents[2]
    inputs = [str(repository / BUNDLE), *(str(RECORDED / f"{name}.json") for name in INPUTS)]
    assert main(["report", *inputs, "-o", str(path)]) == 0
    return path


class Opened:
    """A page with everything that it said and asked for."""

    def __init__(self, browser: Browser, path: Path, **settings: Any) -> None:
        self.page: Page = browser.new_page(**settings)
        self.page.set_default_timeout(ACTION_MS)
        self.said: list[str] = []
        self.requested: list[str] = []
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("request", lambda request: self.requested.append(request.url))
        self.page.goto(path.as_uri(), timeout=READY_MS)
        self.page.wait_for_selector("html[data-ready]", state="attached", timeout=READY_MS)

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than its window."""
        found: int = self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        return found


@pytest.fixture(scope="module")
def wide(browser: Browser, report: Path) -> Iterator[Opened]:
    opened = Opened(browser, report, viewport={"width": 1600, "height": 1000}, color_scheme="light")
    yield opened
    opened.page.close()


def background(page: Page) -> str:
    found: str = page.evaluate("getComputedStyle(document.querySelector('.part')).backgroundColor")
    return found


def test_it_draws_everything_and_asks_for_nothing(wide: Opened, report: Path) -> None:
    assert wide.page.evaluate("document.documentElement.dataset.ready") == "true"
    assert wide.said == []
    assert wide.requested == [report.as_uri()]
    assert wide.overflow() <= 0


def test_every_chart_shows_its_data(wide: Opened, report: Path) -> None:
    plots = wide.page.locator(".plot")
    count = len(read(report.read_text()).specs)
    assert plots.count() == count > 15
    shapes = wide.page.eval_on_selector_all(
        ".plot",
        """plots => plots.map(plot => {
            const marks = [...plot.querySelectorAll('.mark-rect path, .mark-line path, .mark-symbol path')];
            const seen = marks.filter(mark => mark.getBBox().width + mark.getBBox().height > 0 &&
                                              !mark.closest('[class*=role-legend]'));
            const colours = seen.map(mark => getComputedStyle(mark)).map(style => style.fill + style.stroke);
            return [plot.getAttribute('aria-label'), seen.length, plot.getBoundingClientRect().height,
                    colours.filter(colour => colour === 'nonenone').length];
        })""",
    )
    for label, marks, height, invisible in shapes:
        assert marks >= 1 and height >= 60 and invisible == 0, (label, marks, height, invisible)
    # A name in a chart's label: what it shows is said in words too.
    assert all(label and len(label) > 20 for label, *_ in shapes)


def test_tables_sort_by_mouse_and_keyboard(wide: Opened) -> None:
    table = wide.page.locator("table[data-sortable]", has=wide.page.get_by_role("button", name="TTFT p99")).first

    def order() -> list[str]:
        return table.locator("tbody tr td:nth-child(1)").all_inner_texts()

    def numbers() -> list[float]:
        found: list[float] = table.locator("tbody tr td:nth-child(5)").evaluate_all(
            "cells => cells.map(cell => Number(cell.dataset.order))"
        )
        return found

    before = order()
    head = table.locator("th", has_text="TTFT p99")
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "descending")
    assert numbers() == sorted(numbers(), reverse=True)
    head.get_by_role("button").focus()
    wide.page.keyboard.press("Enter")
    expect(head).to_have_attribute("aria-sort", "ascending")
    assert numbers() == sorted(numbers()) and sorted(order()) == sorted(before)
    first = table.locator("th").first
    first.get_by_role("button").click()
    expect(first).to_have_attribute("aria-sort", "ascending")
    assert head.get_attribute("aria-sort") is None
    assert order() == sorted(order())


def test_the_index_leads_to_every_input(wide: Opened) -> None:
    links = wide.page.locator("nav a")
    assert links.count() == len(INPUTS) + 1
    links.last.click()
    assert wide.page.evaluate("location.hash") == f"#part-{len(INPUTS) + 1}"
    expect(wide.page.locator(f"#part-{len(INPUTS) + 1} h2")).to_be_in_viewport()


def test_a_tooltip_shows_numbers_and_no_markup(wide: Opened) -> None:
    wide.page.locator(".plot", has_text="decode node").locator(".mark-text text").first.hover()
    tooltip = wide.page.locator("#vg-tooltip-element")
    expect(tooltip).to_be_visible()
    assert "ms" in tooltip.inner_text()


def test_it_is_narrow_and_dark_where_the_reader_is(wide: Opened) -> None:
    page, light = wide.page, background(wide.page)
    label = page.locator(".role-axis-label text").first
    colour = label.evaluate("text => getComputedStyle(text).fill")
    page.set_viewport_size({"width": 400, "height": 800})
    page.emulate_media(color_scheme="dark")
    # The charts follow the window: none is wider than it, but those that scroll on their own.
    page.wait_for_function(
        "[...document.querySelectorAll('.plot:not([style*=min-width]) svg')].every(one => one.clientWidth <= 400)"
    )
    widths = page.eval_on_selector_all(".plot svg", "charts => charts.map(chart => chart.clientWidth)")
    assert min(widths) > 200
    assert wide.overflow() <= 0 and wide.said == []
    assert background(page) == "rgb(23, 26, 33)" != light
    assert label.evaluate("text => getComputedStyle(text).fill") != colour
    page.get_by_role("button", name="light and dark").click()
    assert background(page) == light
    page.get_by_role("button", name="light and dark").click()
    assert background(page) != light
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1600, "height": 1000})


def test_it_prints_everything_in_light(browser: Browser, report: Path, wide: Opened, tmp_path: Path) -> None:
    folded = wide.page.locator("details").first
    assert folded.get_attribute("open") is None
    wide.page.emulate_media(media="print", color_scheme="dark")
    assert background(wide.page) == "rgb(255, 255, 255)"
    document = wide.page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert document.startswith(b"%PDF-") and len(document) > 50_000
    wide.page.emulate_media(media="screen", color_scheme="light")


def test_hostile_text_runs_nothing(browser: Browser, tmp_path: Path) -> None:
    hostile = "</script><img src=x onerror=document.title='run'><script>document.title='run'</script>"
    text = (RECORDED / "kv.json").read_text().replace('"operation": "write"', f'"operation": "{hostile}"')
    text = text.replace('"host": "', f'"host": "{hostile}')
    assert hostile in text
    source, path = tmp_path / "kv.json", tmp_path / f"{os.getpid()}.html"
    source.write_text(text)
    assert main(["report", str(source), "-o", str(path)]) == 0
    opened = Opened(browser, path)
    try:
        assert opened.page.title() != "run" and opened.page.locator("img").count() == 0
        assert opened.said == [] and opened.requested == [path.as_uri()]
        # Even what is put into the page afterwards may not run: the policy knows the scripts by their hash.
        opened.page.evaluate(
            "document.body.insertAdjacentHTML('beforeend', `<img src=x onerror=\"document.title='run'\">`)"
        )
        opened.page.wait_for_timeout(200)
        assert opened.page.title() != "run" and any("Content Security Policy" in line for line in opened.said)
    finally:
        opened.page.close()
