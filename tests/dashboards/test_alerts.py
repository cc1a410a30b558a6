"""Every alert fires in its situation; not before `for`, at a counter's reset, without traffic or without series."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.alerting import recordings, rules
from dashboards.alerting.base import Alert
from tests.dashboards.series import STEP, TARGET, Series, written
from tests.dashboards.situations import SITUATIONS, Situation

pytestmark = [pytest.mark.component, pytest.mark.xdist_group("dashboards-promtool")]
GOLDEN = Path(__file__).parent / "golden/alerts.yml"
ALERTS = {alert.name: alert for alert in rules.alerts()}
UPDATE = bool(os.environ.get("KVDIAG_UPDATE_GOLDEN"))
GONE = 80
"""Minutes after which nothing of a series is in any window of an alert that asks whether something happens."""


def minutes(hold: str) -> int:
    return int(hold[:-1]) * {"m": 1, "h": 60}[hold[-1]]


def used_recordings(expr: str) -> dict[str, Any]:
    """Return the group of those recordings that an expression needs, directly or not: the others only cost time."""
    needed: set[str] = set()
    waiting = [expr]
    while waiting:
        text = waiting.pop()
        for one in recordings.RECORDINGS:
            if one.name in text and one.name not in needed:
                needed.add(one.name)
                waiting.append(one.expr)
    group = rules.recording_group()
    return {**group, "rules": [rule for rule in group["rules"] if rule["record"] in needed]}


def test_group(name: str, series: list[Series], values: list[str], expected: dict[int, list[Any]]) -> dict[str, Any]:
    return {
        "interval": STEP,
        "input_series": [
            {"series": written(one), "values": value} for one, value in zip(series, values, strict=True)
        ],
        "alert_rule_test": [
            {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": alerts} for minute, alerts in expected.items()
        ],
    }  # fmt: skip


test_group.__test__ = False  # type: ignore[attr-defined]


def timeline(alert: Alert, found: Situation, fired: list[Any]) -> dict[str, Any]:
    """Return a group of good, bad and gone: silent while good and before `for`, firing after it, silent at the end."""
    hold = minutes(alert.hold)
    bad = hold + found.slack + 1
    values = [one.timeline(found.lead, bad, GONE) for one in found.series]
    expected = {
        found.lead - 1: [],
        found.lead + hold - 1: [],
        found.lead + bad - 1: fired,
        found.lead + bad + GONE: [],
    }
    return test_group(alert.name, found.series, values, expected)


def always_silent(alert: Alert, found: Situation) -> list[dict[str, Any]]:
    """Return groups of a reset of every counter, of no traffic and of no series: silent without waiting for `for`."""
    span, each = 30, range(1, 60)
    reset = test_group(alert.name, found.series, [one.reset(span) for one in found.series], {at: [] for at in each})
    quiet = test_group(alert.name, found.series, [one.quiet(60) for one in found.series], {at: [] for at in each})
    absent = test_group(alert.name, [], [], {at: [] for at in (1, 30)})
    return [reset, quiet, absent]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Run promtool once over the tests of all alerts; what it says of each."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    folder = tmp_path_factory.mktemp("rules")
    golden = yaml.safe_load(GOLDEN.read_text()) if GOLDEN.exists() and not UPDATE else {}
    names = []
    for alert in ALERTS.values():
        recorded = used_recordings(alert.expr)
        rule = rules.alert_rule(alert)
        for kind, one in (("fires", rule), ("silent", {**rule, "for": "0s"})):
            groups = [recorded] if recorded["rules"] else []
            groups.append({"name": "alert", "rules": [one]})
            (folder / f"{alert.name}-{kind}.rules").write_text(rules.as_yaml(groups))
        found = SITUATIONS[alert.name]
        tests: dict[str, list[Any]] = {
            "fires": [timeline(alert, found, golden.get(alert.name, []))],
            "silent": always_silent(alert, found),
        }
        for kind, groups in tests.items():
            document = {
                "rule_files": [f"{alert.name}-{kind}.rules"], "evaluation_interval": STEP, "tests": groups,
            }  # fmt: skip
            (folder / f"{alert.name}-{kind}.yml").write_text(yaml.safe_dump(document))
            names.append(f"{alert.name}-{kind}.yml")
    done = subprocess.run(
        ["promtool", "test", "rules", *names],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    said = dict.fromkeys(names, "")
    for part in done.stdout.split("Unit Testing:")[1:]:
        name, _, text = part.partition("\n")
        said[name.strip()] = text
    if UPDATE:
        GOLDEN.parent.mkdir(exist_ok=True)
        got = {name: fired(said[f"{name}-fires.yml"]) for name in sorted(ALERTS)}
        GOLDEN.write_text(yaml.safe_dump(got, width=118))
    return said


def fired(said: str) -> list[dict[str, Any]]:
    """Return labels and annotations of the alert that promtool got and did not expect."""
    got = re.search(r"got:\[(.*?)\]\s*$", said, re.DOTALL | re.MULTILINE)
    assert got, said
    pairs = re.findall(r"Labels:\{(.*?)\}\s+Annotations:\{(.*?)\}$", got[1], re.DOTALL | re.MULTILINE)
    assert pairs, said
    return [
        {
            "exp_labels": {k: v for k, v in _quoted(labels).items() if k != "alertname"},
            "exp_annotations": _quoted(annotations),
        }
        for labels, annotations in pairs
    ]  # fmt: skip


def _quoted(text: str) -> dict[str, str]:
    return {name: yaml.safe_load(value) for name, value in re.findall(r'(\w+)=("(?:[^"\\]|\\.)*")', text)}


def test_every_alert_has_a_situation() -> None:
    assert SITUATIONS.keys() == ALERTS.keys()
    assert len(ALERTS) >= 20
    assert all(one.labels.items() >= TARGET.items() for found in SITUATIONS.values() for one in found.series)


@pytest.mark.parametrize("name", sorted(ALERTS))
def test_fires_after_its_time_and_ends_with_its_series(name: str, outputs: dict[str, str]) -> None:
    assert outputs[f"{name}-fires.yml"].strip() == "SUCCESS"


@pytest.mark.parametrize("name", sorted(ALERTS))
def test_is_silent_at_a_reset_without_traffic_and_without_series(name: str, outputs: dict[str, str]) -> None:
    assert outputs[f"{name}-silent.yml"].strip() == "SUCCESS"


def test_promtool_finds_nothing_to_complain_about_in_the_checked_in_files() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    folder = Path(__file__).parents[2] / "dashboards/rules"
    names = sorted(path.name for path in folder.glob("*.yml"))
    done = subprocess.run(
        ["promtool", "check", "rules", "--lint=all", "--lint-fatal", *names],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert len(names) == 2
