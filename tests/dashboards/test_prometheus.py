"""Every query of every panel and rule, asked of a real Prometheus that holds every series and recorded engines."""

import json
import math
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

from dashboards.alerting import rules
from dashboards.alerting.recordings import RECORDINGS
from dashboards.queries import SOURCES
from kvdiag_exporters.engines import maps
from tests.dashboards import backfill, live, promql
from tests.dashboards.test_lint import DASHBOARDS, panels
from tests.dashboards.test_rules import GOLDEN
from tests.exporters.replay import alive
from tests.exporters.test_cli import FEW_S, exporter
from tests.exporters.test_prometheus import prometheus

pytestmark = [pytest.mark.component, pytest.mark.xdist_group("dashboards-prometheus")]
ROOT = Path(__file__).parents[2]
T = TypeVar("T")
INCIDENTS = {
    re.search(r"\*\*(\w+)\*\* fires", section)[1]: " ".join(section.split())  # type: ignore[index]
    for section in (ROOT / "docs/incidents.md").read_text().split("\n## ")[1:]
}
RECORDED = tuple(f"{name}-recorded" for name in backfill.RECORDED)
TELLS_NOTHING = "vllm-mooncake-recorded"
"""vLLM counts Mooncake's transfers from 0.33 on."""
JOBS = ("kvdiag", "idle", *SOURCES, *RECORDED, *INCIDENTS)


class Asked:
    """A Prometheus, and the time at which all series are there."""

    def __init__(self, base: str, time_s: int) -> None:
        self._base, self._time_s = base, time_s

    def ready(self) -> None:
        deadline = time.monotonic() + FEW_S
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self._base}/-/ready", timeout=FEW_S):
                    return
            except OSError:
                time.sleep(0.1)
        pytest.fail("Prometheus does not become ready")

    def query(
        self, expr: str, job: str = ".*", *, time_s: float | None = None, chosen: Mapping[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """Return the series of an instant query that have a number; fails where Prometheus refuses or warns.

        `chosen` are values of the dashboard's variables; of all others everything is meant.
        """
        filled = expr.replace("$__rate_interval", "5m").replace("$job", job)
        filled = re.sub(r"\$(\w+)", lambda found: (chosen or {}).get(found[1], ".*"), filled)
        asked = urllib.parse.urlencode({"query": filled, "time": time_s or self._time_s})
        try:
            with urllib.request.urlopen(f"{self._base}/api/v1/query?{asked}", timeout=FEW_S) as answer:
                document = json.load(answer)
        except urllib.error.HTTPError as error:
            pytest.fail(f"{filled}: {error.read().decode()}")
        assert not document.get("warnings"), filled
        found: list[dict[str, Any]] = document["data"]["result"]
        return [one for one in found if not math.isnan(float(one["value"][1]))]

    def until(self, ask: Callable[[], T], right: Callable[[T], bool]) -> T:
        """Return the first answer that is right, or the last one where none is in time: scrapes take their time."""
        deadline = time.monotonic() + FEW_S
        while not right(found := ask()) and time.monotonic() < deadline:
            time.sleep(0.5)
        return found

    def get(self, path: str) -> Any:
        """Return the data of one of Prometheus's own documents."""
        with urllib.request.urlopen(f"{self._base}/api/v1/{path}", timeout=FEW_S) as answer:
            return json.load(answer)["data"]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    if shutil.which("promtool") is None or shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed (Debian package prometheus)")
    folder = tmp_path_factory.mktemp("prometheus")
    end_s = int(time.time()) // 7200 * 7200 - 3600
    (folder / "series.txt").write_text(backfill.text(end_s, jobs=JOBS))
    done = subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(folder / "series.txt"), str(folder / "data")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (folder / "rules").mkdir()
    for path in (ROOT / "dashboards/rules").glob("*.yml"):
        # Once a minute is too seldom for a test; nothing else is changed.
        (folder / "rules" / path.name).write_text(path.read_text().replace("interval: 1m", "interval: 2s"))
    with (
        alive(folder) as config,
        exporter(folder, config) as (_, url),
        prometheus(folder, url.removeprefix("http://"), live.JOB) as base,
    ):
        found = Asked(base, end_s)
        found.ready()
        yield found


def targets() -> Iterator[tuple[str, dict[str, Any], dict[str, Any], set[str]]]:
    """Yield every query of every panel with the names that it asks for."""
    for uid, found in DASHBOARDS.items():
        for panel in panels(found):
            for target in panel["targets"]:
                names = {one.name for one in promql.selectors(promql.parsed(target["expr"]))}
                yield f"{uid}: {panel['title']} {target['refId']}", panel, target, names


def test_no_panel_is_empty_where_an_exporter_is_read(asked: Asked) -> None:
    empty, unnamed = [], []
    for where, _, target, names in targets():
        if not any(name.startswith(("kvdiag_", "pair:")) for name in names) or " unless on () " in target["expr"]:
            continue
        found = asked.query(target["expr"], "kvdiag")
        if not found:
            empty.append(where)
        shown = re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", ""))
        unnamed += [where for one in found[:1] for label in shown if not one["metric"].get(label)]
    assert empty == []
    assert unnamed == []


@pytest.mark.parametrize("source", SOURCES)
def test_an_engine_alone_fills_what_is_made_for_it(asked: Asked, source: str) -> None:
    prefixes = next(tuple(one.prefixes) for one in maps.load() if one.source == source)
    empty, count = [], 0
    for where, _, target, names in targets():
        if any(name.startswith(prefixes) for name in names):
            count += 1
            if not asked.query(target["expr"], source):
                empty.append(where)
    assert empty == []
    assert count >= 10


@pytest.mark.parametrize("job", ["kvdiag", *SOURCES, *(one for one in RECORDED if one != TELLS_NOTHING)])
def test_the_numbers_on_top_are_there_with_whatever_is_read(asked: Asked, job: str) -> None:
    tops = {
        panel["title"]: panel["targets"][0]["expr"]
        for panel in panels(DASHBOARDS["kvdiag-overview"])
        if panel["type"] == "stat"
    }
    for title in ("Transfer time p50", "Transfer time p99", "KV throughput"):
        (found,) = asked.query(tops[title], job)
        assert float(found["value"][1]) > 0, title


def test_recorded_engines_fill_the_dashboards_that_are_made_for_them(asked: Asked) -> None:
    """What vLLM 0.32.0 really served over NIXL 1.5.1, behind a link of 200 Mbit/s."""
    filled = {where for where, _, target, _ in targets() if asked.query(target["expr"], "vllm-recorded")}
    for panel in ("Transfer time", "KV throughput", "Failures per second", "Time to first token"):
        assert any(one.startswith(f"kvdiag-overview: {panel} ") for one in filled), panel
    for panel in ("Transfer time", "Posting", "Bytes per transfer", "Descriptors per transfer"):
        assert any(one.startswith(f"kvdiag-pair: {panel} ") for one in filled), panel


def test_an_engine_that_counts_no_transfers_shows_the_rest(asked: Asked) -> None:
    filled = {where for where, _, target, _ in targets() if asked.query(target["expr"], TELLS_NOTHING)}
    assert any(one.startswith("kvdiag-overview: Time to first token ") for one in filled)
    assert not any(one.startswith("kvdiag-overview: Transfer time ") for one in filled)


def test_recorded_failures_are_shown(asked: Asked) -> None:
    """Of vLLM's decode engine whose prefill engine was killed under it: four of its transfers failed."""
    shown: dict[str, list[float]] = {}
    for where, _, target, _ in targets():
        values = [float(one["value"][1]) for one in asked.query(target["expr"], "vllm-killed-recorded")]
        shown.setdefault(where.rpartition(" ")[0], []).extend(values)
    assert max(shown["kvdiag-overview: Failures per second"]) > 0
    assert 0 < max(shown["kvdiag-overview: Failed transfers"]) < 1


def test_what_a_whole_exporter_served_fills_the_dashboards_of_what_it_watched(asked: Asked) -> None:
    """The host that was read has soft-RoCE ports and an engine with NIXL and records."""
    found = (where for where, _, target, _ in targets() if asked.query(target["expr"], "exporter-recorded"))
    filled = {where.rpartition(" ")[0] for where in found}
    for panel in (
        "overview: Transfer time p99", "overview: Time to first token", "overview: Where a request's time goes",
        "overview: The slowest pairs", "pair: Mean time per stage", "pair: Bytes per request",
        "pair: Loss: retransmissions and packets out of sequence", "pair: Queue pairs by state",
        "fabric: Bytes per second", "fabric: Ports", "fabric: Registered memory", "fabric: Ports up",
        "exporter: Exporters", "exporter: Collectors", "exporter: Records read and dropped per second",
        "exporter: NIXL telemetry: full rings and dropped events",
    ):  # fmt: skip
        assert f"kvdiag-{panel}" in filled


def test_no_traffic_is_not_zero(asked: Asked) -> None:
    shown: dict[str, list[Any]] = {}
    for _, panel, target, _ in targets():
        if panel["type"] == "stat" or panel["title"] in ("Speed of a transfer", "Failures per second"):
            shown.setdefault(panel["title"], []).extend(asked.query(target["expr"], "idle"))
    for title in ("Transfer time p50", "Transfer time p99", "Failed transfers", "Speed of a transfer"):
        assert shown[title] == [], title
    assert {one["value"][1] for one in shown["Failures per second"]} == {"0"}


@pytest.mark.parametrize("rule", [*RECORDINGS, *rules.alerts()], ids=lambda rule: rule.name)
def test_a_rule_is_answered_and_all_that_it_asks_for_is_there(asked: Asked, rule: Any) -> None:
    asked.query(rule.expr)
    for one in promql.selectors(promql.parsed(rule.expr)):
        assert asked.query(f'count({one.name}{{job="kvdiag"}}) or count({one.name})'), one.name


def _exprs() -> list[str]:
    return [*(one.expr for one in RECORDINGS), *(one.expr for one in rules.alerts())]


def _alerting(asked: Asked) -> dict[str, list[dict[str, str]]]:
    """Return what each alert's condition holds for now."""
    found = {one.name: asked.query(one.expr, time_s=time.time()) for one in rules.alerts()}
    return {name: [one["metric"] for one in series] for name, series in found.items() if series}


def test_a_scraped_exporter_fills_every_panel_that_its_host_can(asked: Asked) -> None:
    """The exporter runs, Prometheus scrapes it once a second, and the host's counters, engine and records move."""

    def empty() -> set[str]:
        shown: dict[str, bool] = {}
        for where, _, target, _ in targets():
            panel = where.rpartition(" ")[0]
            shown[panel] = shown.get(panel, False) or bool(asked.query(target["expr"], live.JOB, time_s=time.time()))
        return {panel for panel, filled in shown.items() if not filled} - live.MAY_BE_EMPTY

    assert asked.until(empty, lambda found: found == set(live.EMPTY_PANELS)) == set(live.EMPTY_PANELS)


def test_a_scraped_exporter_serves_what_the_rules_ask_for_and_the_guilty_are_named(asked: Asked) -> None:
    names = {one.name for expr in _exprs() for one in promql.selectors(promql.parsed(expr))}

    def absent() -> set[str]:
        return {name for name in names if not asked.query(f"count({name})", time_s=time.time())}

    assert asked.until(absent, lambda found: found == set(live.ABSENT_METRICS)) == set(live.ABSENT_METRICS)
    found = asked.until(lambda: _alerting(asked), lambda found: found.keys() - live.MAY_HOLD == live.GUILTY.keys())
    assert sorted(found.keys() - live.MAY_HOLD) == sorted(live.GUILTY)
    for name, guilty in live.GUILTY.items():
        (only,) = found[name]
        assert guilty.items() <= only.items(), name


def test_prometheus_itself_evaluates_every_rule(asked: Asked) -> None:
    loaded = [rule for group in asked.get("rules")["groups"] for rule in group["rules"]]
    assert {one["name"] for one in loaded} == {one.name for one in RECORDINGS} | {one.name for one in rules.alerts()}
    assert [one["name"] + one.get("lastError", "") for one in loaded if one["health"] == "err"] == []


@pytest.mark.parametrize("name", INCIDENTS)
def test_two_clicks_lead_from_an_incidents_alert_to_its_cause(asked: Asked, name: str) -> None:
    """The first click is the alert's dashboard, whose panels show the culprit on top; the second its page."""
    told = INCIDENTS[name]
    (alert,) = [one for one in rules.alerts() if one.name == name]
    dashboard = DASHBOARDS[re.match(r"/d/([\w-]+)", alert.dashboard)[1]]  # type: ignore[index]
    by_title = {panel["title"]: panel for panel in panels(dashboard)}
    (fired,) = GOLDEN[name]
    link = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: fired["exp_labels"][found[1]], alert.dashboard)
    chosen = {key.removeprefix("var-"): value for key, value in urllib.parse.parse_qsl(link.partition("?")[2])}
    chosen.pop("job", None)
    title = re.search(r"2\. ([\w -]+) › ", told)[1]  # type: ignore[index]
    assert dashboard["title"] == f"kvdiag / {title}"
    shown = re.findall(r"\*([^*]+)\*(?:: `(\w+)` on top)?", told.split(" › ")[1].split(" 3. ")[0])
    assert shown[0][1]
    for panel, culprit in shown:
        found = [
            one for target in by_title[panel]["targets"] for one in asked.query(target["expr"], name, chosen=chosen)
        ]
        assert found, panel
        if culprit:
            top = max(found, key=lambda one: float(one["value"][1]))
            assert culprit in top["metric"].values(), panel
    assert f"](../{alert.page})" in told.split(" 3. ")[1]


def test_there_are_five_incidents_and_each_names_its_report() -> None:
    assert len(INCIDENTS) == 5
    assert all("](https://github.com/" in told for told in INCIDENTS.values())
