"""`python -m dashboards.preview`: draws the checked-in dashboards and writes a picture of each.

Prometheus answers every query of every panel over a simulated hour; Grafana's own components (npm, Apache-2.0) draw the
answers in headless Chromium. No Grafana server takes part: its panel plugins are not to be had as a library, so this
shows layout, titles, units, legends and colours, and proves nothing about importing.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from dashboards.preview import cluster
from tests.exporters.test_prometheus import prometheus

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
HOUR_S = 3600
CHOSEN = {"kvdiag-pair": {"src": "prefill-1", "dst": cluster.NODE}}
"""What is chosen in place of All."""
_BUNDLE = (
    "--bundle", "--minify", "--jsx=automatic", "--define:process.env.NODE_ENV=\"production\"", "--define:global=window",
    "--loader:.svg=dataurl", "--loader:.ttf=dataurl", "--log-level=error",
)  # fmt: skip
_PAGE = """<!doctype html><meta charset="utf-8"><title>preview</title><link rel="stylesheet" href="bundle.css">
<style>html, body {{ margin: 0; background: #111217; font-family: Inter, "DejaVu Sans", sans-serif }}</style>
<div id="root"></div><pre id="report" style="display: none"></pre>
<script>Object.assign(window, {{DASHBOARD: {dashboard}, ANSWERS: {answers}, RANGE: {range}, CHOSEN: {chosen}}})</script>
<script>{bundle}</script>
"""


def main() -> int:
    """Return 0 where every panel drew something without an error, 1 where one did not, 3 where a program is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images", help="folder of the pictures")
    parser.add_argument("--scratch", type=Path, default=ROOT / ".preview", help="folder for npm's packages (500 MB)")
    given = parser.parse_args()
    programs = ("npm", "node", "prometheus", "promtool", "chromium", "pngquant")
    missing = [one for one in programs if shutil.which(one) is None]
    if missing:
        sys.stderr.write(
            f"preview: not installed: {', '.join(missing)}; on Debian: apt-get install {' '.join(missing)}\n"
        )
        return 3
    bundle(given.scratch)
    given.out.mkdir(parents=True, exist_ok=True)
    end_s = int(time.time()) // cluster.STEP_S * cluster.STEP_S - HOUR_S
    failed = False
    with tempfile.TemporaryDirectory(dir=given.scratch) as name:
        folder = Path(name)
        (folder / "series.txt").write_text(cluster.openmetrics(folder / "host", end_s - HOUR_S, end_s))
        run("promtool", "tsdb", "create-blocks-from", "openmetrics", folder / "series.txt", folder / "data")
        with prometheus(folder, "127.0.0.1:1") as base:
            wait_for(f"{base}/-/ready")
            for path in sorted((ROOT / "dashboards/grafana").glob("*.json")):
                dashboard = json.loads(path.read_text())
                page = write_page(given.scratch, dashboard, base, end_s)
                failed = not picture(page, dashboard, given.out) or failed
    return int(failed)


def bundle(scratch: Path) -> None:
    """Install the packages once and bundle the page."""
    scratch.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "page.tsx"):
        shutil.copy(HERE / name, scratch)
    if not (scratch / "node_modules/.bin/esbuild").exists():
        run("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--silent", cwd=scratch)
    run("node_modules/.bin/esbuild", "page.tsx", *_BUNDLE, "--outfile=bundle.js", cwd=scratch)


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Return what a program printed; RuntimeError with its last words where it fails."""
    done = subprocess.run(
        [str(one) for one in command], cwd=cwd, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} {command[1]} failed: {done.stderr[-2000:]}")
    return done.stdout


def wait_for(url: str) -> None:
    """Return once the address answers; RuntimeError after a minute."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310  (its own server)
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"{url} does not answer")


def write_page(scratch: Path, dashboard: dict[str, Any], base: str, end_s: int) -> Path:
    """Write the page of one dashboard with the answers to all its queries beside the bundle."""
    chosen = CHOSEN.get(dashboard["uid"], {})
    answers: dict[str, Any] = {}
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            expr = target["expr"].replace("$__rate_interval", "2m")
            expr = re.sub(r"\$(\w+)", lambda match: chosen.get(match[1], ".*"), expr)
            at = {"query": expr, "time": end_s} if target.get("instant") else {
                "query": expr, "start": end_s - HOUR_S, "end": end_s, "step": 2 * cluster.STEP_S,
            }  # fmt: skip
            kind = "query" if target.get("instant") else "query_range"
            asked = f"{base}/api/v1/{kind}?{urllib.parse.urlencode(at)}"
            with urllib.request.urlopen(asked, timeout=60) as answer:  # noqa: S310  (its own server)
                answers[f"{panel['id']}{target['refId']}"] = json.load(answer)["data"]["result"]
    page = scratch / f"{dashboard['uid']}.html"
    page.write_text(
        _PAGE.format(
            dashboard=_script(dashboard), answers=_script(answers), chosen=_script(chosen),
            bundle=(scratch / "bundle.js").read_text().replace("</script", "<\\/script"),
            range=_script({"from": (end_s - HOUR_S) * 1000, "to": end_s * 1000}),
        )
    )  # fmt: skip
    return page


def _script(value: object) -> str:
    return json.dumps(value).replace("</", "<\\/")


def picture(page: Path, dashboard: dict[str, Any], out: Path) -> bool:
    """Write the picture; return whether every panel drew something and nothing failed, and say what did not."""
    chromium = (
        "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        "--virtual-time-budget=9000",
    )  # fmt: skip
    target = out / f"dashboard-{dashboard['uid'].removeprefix('kvdiag-')}.png"
    # Grafana draws what is in sight only, so the window is as high as the page may be.
    dom = run(*chromium, "--window-size=1440,5000", "--dump-dom", page.as_uri())
    told = re.search(r'<pre id="report"[^>]*>(\{.*?\})</pre>', dom, re.DOTALL)
    report = json.loads(told[1].replace("&quot;", '"').replace("&amp;", "&").replace("&gt;", ">")) if told else {}
    run(*chromium, f"--window-size=1440,{report.get('height', 1000)}", f"--screenshot={target}", page.as_uri())
    run("pngquant", "--force", "--speed", "1", "--output", target, "64", target)
    empty = sorted(title for title, count in report.get("drawn", {}).items() if not count)
    problems = report.get("problems", ["the page did not report"])
    sys.stdout.write(f"{target}: {target.stat().st_size >> 10} KiB, {len(report.get('drawn', {}))} panels\n")
    for what, found in (("empty", empty), ("failed", problems)):
        for one in found:
            sys.stdout.write(f"  {what}: {one}\n")
    return not empty and not problems


if __name__ == "__main__":
    sys.exit(main())
