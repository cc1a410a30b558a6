"""What a dashboard must have, whatever it shows; after the rules of Grafana's dashboard linter."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client.parser import text_string_to_metric_families

from dashboards import build, exporter, fabric, overview, pair
from kvdiag_exporters.catalog import metrics
from tests.dashboards import promql

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "dashboards/grafana").glob("*.json"))
DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in FILES}
UNITS = {"s", "Bps", "bytes", "percentunit", "short", "ops", "pps"}
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
NOT_AS_RATE = {
    "unless": "asks only whether an exporter serves the metric",
}
FIXED_RANGE = {"1h": "link events are so rare that a rate per second says nothing"}


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every panel but rows, those inside collapsed rows too."""
    for one in dashboard["panels"]:
        if one["type"] == "row":
            yield from one["panels"]
        else:
            yield one


PANELS = [
    pytest.param(uid, panel, id=f"{uid}-{panel['id']}") for uid, found in DASHBOARDS.items() for panel in panels(found)
]


def exprs(panel: dict[str, Any]) -> list[str]:
    return [target["expr"] for target in panel["targets"]]


def test_the_checked_in_files_are_those_that_the_code_makes() -> None:
    assert build.main(["--check"]) == 0


def test_check_names_a_file_that_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main(["--out", str(tmp_path), "--docs-url", "https://docs.example/x/"]) == 0
    assert build.main(["--out", str(tmp_path), "--check", "--docs-url", "https://docs.example/x/"]) == 0
    assert "runbook_url: https://docs.example/x/docs/runbooks/" in (tmp_path / "rules/kvdiag-alerts.yml").read_text()
    changed = tmp_path / "grafana/kvdiag-pair.json"
    changed.write_text(changed.read_text().replace("wire", "wired"))
    (tmp_path / "grafana/kvdiag-old.json").write_text("{}")
    assert build.main(["--out", str(tmp_path), "--check", "--docs-url", "https://docs.example/x/"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("not up to date: grafana/kvdiag-pair.json, grafana/kvdiag-old.json; run ")


def test_a_metric_that_was_renamed_is_named_with_the_file_that_asks_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tuple(one for one in metrics() if one.name not in ("kvdiag_rdma_port_up", "kvdiag_ttft_seconds"))
    monkeypatch.setattr("kvdiag_exporters.catalog.metrics", lambda: left)
    assert build.main(["--out", str(tmp_path)]) == 1
    said = capsys.readouterr().err.splitlines()
    where = "is no metric of the exporter; see docs/metrics.md"
    assert f"grafana/kvdiag-fabric.json asks for kvdiag_rdma_port_up, which {where}" in said
    assert f"rules/kvdiag-alerts.yml asks for kvdiag_rdma_port_up, which {where}" in said
    assert f"grafana/kvdiag-pair.json asks for kvdiag_ttft_seconds_bucket, which {where}" in said
    assert all("kvdiag_rdma_port_up" in line or "kvdiag_ttft_seconds" in line for line in said)


@pytest.mark.parametrize("module", [overview, pair, fabric, exporter])
def test_no_key_is_unknown_to_grafana(module: Any) -> None:
    """A key that the SDK's model does not know is lost on the way through it."""
    text = (ROOT / f"dashboards/grafana/{module.build().uid}.json").read_text()
    read = Dashboard.from_json(json.loads(text))
    assert json.loads(JSONEncoder(sort_keys=True).encode(read)) == json.loads(text)


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_a_dashboard_is_fixed_linked_and_asks_questions(uid: str) -> None:
    found = DASHBOARDS[uid]
    assert found["uid"] == uid
    assert found["tags"] == ["kvdiag"]
    assert found["editable"] is False
    assert found["schemaVersion"] == 39
    (link,) = found["links"]
    assert (link["type"], link["tags"], link["keepTime"], link["includeVars"]) == ("dashboards", ["kvdiag"], True, True)
    rows = [one for one in found["panels"] if one["type"] == "row"]
    assert all(re.search(r"\?( \(.+\))?$", row["title"]) for row in rows)
    assert found["panels"][0] == rows[0]
    ids = [one["id"] for one in [*found["panels"], *panels(found)]]
    assert set(Counter(ids).values()) <= {1, 2}
    assert len({one["id"] for one in found["panels"]}) == len(found["panels"])


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_variables_reload_offer_all_and_name_series_that_exist(uid: str) -> None:
    source, *variables = DASHBOARDS[uid]["templating"]["list"]
    assert (source["type"], source["name"]) == ("datasource", "datasource")
    before = {"datasource"}
    for one in variables:
        assert one["datasource"] == DATASOURCE
        assert (one["refresh"], one["includeAll"], one["multi"], one["allValue"]) == (2, True, True, ".*")
        series, label = re.fullmatch(r"label_values\((.+), (\w+)\)", one["query"]["query"]).groups()  # type: ignore[union-attr]
        (selector,) = promql.selectors(promql.parsed(series))
        assert {label, *selector.labels} <= promql.known()[selector.name]
        assert set(re.findall(r"\$(\w+)", series)) <= before
        before.add(one["name"])


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_every_variable_is_used_and_every_used_one_is_there(uid: str) -> None:
    declared = {one["name"] for one in DASHBOARDS[uid]["templating"]["list"]}
    asked = " ".join(expr for panel in panels(DASHBOARDS[uid]) for expr in exprs(panel))
    used = set(re.findall(r"\$(\w+)", asked)) - {"__rate_interval"}
    chained = set(re.findall(r"\$(\w+)", json.dumps(DASHBOARDS[uid]["templating"])))
    assert used <= declared
    assert declared <= used | chained | {"datasource"}


@pytest.mark.parametrize(("uid", "panel"), PANELS)
def test_a_table_has_the_columns_that_it_names_and_no_other(uid: str, panel: dict[str, Any]) -> None:
    if panel["type"] == "table":
        (target,) = panel["targets"]
        (by,) = {tuple(re.split(r", *", found)) for found in re.findall(r"\w+ by \(([^)]*)\)", target["expr"])[:1]}
        options = panel["transformations"][0]["options"]
        named = options.get("renameByName", {options.get("rowField"): "", options.get("columnField"): ""})
        assert set(by) - {"le"} == set(named) - {"Value"}


@pytest.mark.parametrize(("uid", "panel"), PANELS)
def test_lines_are_named_the_greatest_first(uid: str, panel: dict[str, Any]) -> None:
    if panel["type"] == "timeseries":
        legend = panel["options"]["legend"]
        assert (legend["showLegend"], legend["sortBy"], legend["sortDesc"]) == (True, "Last *", True)


@pytest.mark.parametrize(("uid", "panel"), PANELS)
def test_a_panel_says_what_it_shows(uid: str, panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["datasource"] == DATASOURCE
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert panel["fieldConfig"]["defaults"]["noValue"]
    tells, _, names = panel["description"].partition("\n\nMetrics: ")
    assert tells.endswith(".")
    asked = {one.name for expr in exprs(panel) for one in promql.selectors(promql.parsed(expr))}
    assert set(names.removesuffix(".").split(", ")) == asked
    refs = [target["refId"] for target in panel["targets"]]
    assert refs
    assert len(set(refs)) == len(refs)
    assert all(target["datasource"] == DATASOURCE for target in panel["targets"])


@pytest.mark.parametrize(("uid", "panel"), PANELS)
def test_a_panel_asks_for_series_and_labels_that_exist(uid: str, panel: dict[str, Any]) -> None:
    known = promql.known()
    for target in panel["targets"]:
        tree = promql.parsed(target["expr"])
        found = list(promql.selectors(tree))
        assert {one.name for one in found} <= known.keys()
        for one in found:
            assert one.labels <= known[one.name], one
        for kept, below in promql.grouped(tree):
            assert kept <= set().union(*(known[name] for name in below)), (kept, below)
        legend = set(re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")))
        assert legend <= set().union(*(known[one.name] for one in found))


@pytest.mark.parametrize(("uid", "panel"), PANELS)
def test_counters_are_shown_as_rates_over_grafanas_interval(uid: str, panel: dict[str, Any]) -> None:
    for expr in exprs(panel):
        shown, _, _ = expr.partition(" unless on () ")
        for one in promql.selectors(promql.parsed(shown)):
            counts = re.search(r"_(total|bucket|sum|count)$", one.name)
            assert bool(counts) == bool({"rate", "increase"} & set(one.functions)), one
        for window in re.findall(r"\[([^\]]+)\]", expr):
            assert window == "$__rate_interval" or window in FIXED_RANGE


def test_what_a_real_exporter_served_has_the_labels_that_the_queries_count_on() -> None:
    """The exposition that a whole exporter gave, held against the catalogue that every query is held against."""
    text = (ROOT / "tests/exporters/golden/metrics.txt").read_text()
    known = promql.known()
    served = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert len({sample.name for sample in served}) > 50
    for sample in served:
        assert sample.labels.keys() | promql.TARGET == known[sample.name], sample.name


def test_links_lead_to_dashboards_and_variables_that_exist() -> None:
    links = [
        link["url"]
        for found in DASHBOARDS.values()
        for panel in panels(found)
        for link in panel["fieldConfig"]["defaults"].get("links", [])
    ]
    assert links
    for url in links:
        assert_leads_somewhere(url)


def assert_leads_somewhere(url: str) -> None:
    """Check that a path into Grafana names a dashboard of ours, and variables that it has."""
    uid, variables = re.fullmatch(r"/d/([\w-]+)\??(.*)", url).groups()  # type: ignore[union-attr]
    declared = {one["name"] for one in DASHBOARDS[uid]["templating"]["list"]}
    assert set(re.findall(r"var-(\w+)=", variables)) <= declared


def test_columns_of_tables_are_labels_that_the_query_keeps() -> None:
    tables = [panel for found in DASHBOARDS.values() for panel in panels(found) if panel["type"] == "table"]
    assert tables
    for panel in tables:
        (target,) = panel["targets"]
        assert (target["instant"], target["format"]) == (True, "table")
        kept = promql.known()[next(iter(promql.selectors(promql.parsed(target["expr"])))).name] | {"Value"}
        (change,) = panel["transformations"]
        options = change["options"]
        if change["id"] == "organize":
            assert options["renameByName"].keys() <= kept
        else:
            assert {options["rowField"], options["columnField"], options["valueField"]} <= kept
