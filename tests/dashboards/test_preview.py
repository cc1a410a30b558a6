"""The hour that the pictures of the dashboards are drawn from."""

from pathlib import Path

import pytest

from dashboards.preview import cluster
from tests.dashboards import promql
from tests.dashboards.test_lint import DASHBOARDS


@pytest.mark.component
def test_every_panel_that_is_drawn_has_a_series(tmp_path: Path) -> None:
    start_s = 1_700_000_000
    text = cluster.openmetrics(tmp_path, start_s, start_s + 7 * cluster.STEP_S)
    lines = text.splitlines()
    assert lines[-1] == "# EOF"
    names = {line.partition("{")[0] for line in lines[:-1]}
    assert {int(line.rpartition(" ")[2]) for line in lines[:-1]} == set(range(start_s, start_s + 141, 20))
    for uid, dashboard in DASHBOARDS.items():
        for panel in (one for one in dashboard["panels"] if one["type"] != "row"):
            asked = {one.name for target in panel["targets"] for one in promql.selectors(promql.parsed(target["expr"]))}
            assert asked & names, f"{uid}: {panel['title']}"
