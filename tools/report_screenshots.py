"""Take the report's screenshots of the README anew: docs/images/report-*.png.

Usage: .venv/bin/python tools/report_screenshots.py   (needs the Debian package chromium)
"""

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from kvdiag.cli import main as kvdiag

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs/images"
BUNDLE = "tests/fixtures/bundles/fabric.tcp_fallback-severe"
DOCUMENTS = ("preflight", "bandwidth", "kv", "connections")
WIDTH, SCALE = 1180, 1.25
SHOTS = {
    "verdict": ("#part-1 .headline", "#part-1-1"),
    "causes": ("#part-1-2", "#part-1-2"),
    "pairs": ("#part-1-3", "#part-1-3 .chart >> nth=1"),
    "distributions": ("#part-1-4", "#part-1-4"),
    "timelines": ("#part-1-5 .chart >> nth=1", "#part-1-5 .chart >> nth=-1"),
}
MARGIN = 14
PATIENCE_MS = 180_000


def main() -> int:
    program = shutil.which("chromium")
    if program is None:
        sys.stderr.write("chromium is not installed: apt-get install chromium\n")
        return 1
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, device_scale_factor=SCALE)
        page.set_default_timeout(PATIENCE_MS)
        _open(page, Path(folder) / "bundle.html", str(ROOT / BUNDLE))
        for name, (first, last) in SHOTS.items():
            _shoot(page, name, first, last)
        _open(page, Path(folder) / "all.html", *(str(ROOT / f"tests/fixtures/reports/{one}.json") for one in DOCUMENTS))
        _shoot(page, "index", "nav", "nav")
        _shoot(page, "probe", "#part-2 .headline", "#part-2-1")
        browser.close()
    return 0


def _open(page: Page, path: Path, *inputs: str) -> None:
    if kvdiag(["report", *inputs, "-o", str(path)]) != 0:
        sys.exit(1)
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready=true]", state="attached")


def _shoot(page: Page, name: str, first: str, last: str) -> None:
    """Take what lies between the top of one element and the bottom of another, over the page's width."""
    start, end = (page.locator(selector).first.bounding_box() for selector in (first, last))
    assert start is not None, first
    assert end is not None, last
    scrolled = page.evaluate("window.scrollY")
    top, bottom = start["y"] + scrolled - MARGIN, end["y"] + end["height"] + scrolled + MARGIN
    clip = {"x": 0, "y": top, "width": WIDTH, "height": bottom - top}
    page.screenshot(path=IMAGES / f"report-{name}.png", full_page=True, clip=clip)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main())
