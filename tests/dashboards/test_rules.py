"""Every alert says what is wrong, how bad it is, and leads to a page and a dashboard that are there."""

import re
from pathlib import Path

import pytest
import yaml

from dashboards.alerting import rules
from dashboards.alerting.base import Alert
from dashboards.alerting.recordings import RECORDINGS
from kvdiag.cli._main import build_app
from tests.dashboards import promql
from tests.dashboards.series import Counter
from tests.dashboards.situations import SITUATIONS
from tests.dashboards.test_lint import assert_leads_somewhere

ROOT = Path(__file__).parents[2]
RUNBOOKS = sorted((ROOT / "docs/runbooks").glob("*.md"))
HEADINGS = ["## Meaning", "## Threshold", "## Impact", "## Diagnosis", "## Mitigation"]
GOLDEN = yaml.safe_load((Path(__file__).parent / "golden/alerts.yml").read_text())
ALERTS = [pytest.param(alert, id=alert.name) for alert in rules.alerts()]


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_is_complete(alert: Alert) -> None:
    assert re.fullmatch(r"KV(Transfer|Fabric|Registration|Registered|Diag|TTFT|[A-Z])\w+", alert.name)
    assert re.fullmatch(r"\d+[mh]", alert.hold)
    assert alert.summary.endswith(".")
    assert "{{" not in alert.summary
    assert "{{" in alert.description
    assert_leads_somewhere(re.sub(r"\{\{.*?\}\}", "x", alert.dashboard))


@pytest.mark.parametrize("alert", ALERTS)
def test_its_page_is_there_and_is_a_checks_or_names_the_alert(alert: Alert) -> None:
    page = ROOT / alert.page
    text = page.read_text()
    if page.parent == ROOT / "docs/runbooks":
        assert alert.name in text
        assert text.startswith(f"# {page.stem}\n")
    else:
        assert page.parent == ROOT / "kvdiag/checks"
        assert page.with_suffix(".py").exists()


@pytest.mark.parametrize("alert", ALERTS)
def test_its_annotations_name_labels_that_it_has(alert: Alert) -> None:
    (fired,) = GOLDEN[alert.name]
    used = set(re.findall(r"\$labels\.(\w+)", alert.description + alert.dashboard))
    assert used <= fired["exp_labels"].keys()
    assert fired["exp_labels"]["severity"] == alert.severity
    assert "<no value>" not in str(fired)
    assert "%!" not in str(fired)


@pytest.mark.parametrize(
    ("name", "expr"),
    [(one.name, one.expr) for one in RECORDINGS] + [(one.name, one.expr) for one in rules.alerts()],
)
def test_a_rule_asks_for_series_and_labels_that_exist(name: str, expr: str) -> None:
    tree = promql.parsed(expr)
    known = promql.known()
    found = list(promql.selectors(tree))
    assert found
    for one in found:
        assert one.labels <= known[one.name], one
        counts = re.search(r"_(total|bucket|sum|count)$", one.name)
        assert not counts or {"rate", "increase"} & set(one.functions), one
    for kept, below in promql.grouped(tree):
        assert kept <= set().union(*(known[series] for series in below))


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_can_be_false(alert: Alert) -> None:
    assert re.search(r" (>|<|==|>=|<=) ", alert.expr)


@pytest.mark.parametrize("name", sorted(SITUATIONS))
def test_a_situation_has_the_series_that_the_exporter_serves(name: str) -> None:
    """A test on series that nobody serves would prove nothing; and the alert must ask for one of them."""
    known = promql.known()
    for one in SITUATIONS[name].series:
        assert one.labels.keys() == known[one.name], one.name
        assert isinstance(one, Counter) == bool(re.search(r"_(total|bucket|sum|count)$", one.name))


def test_every_recording_is_named_level_metric_operation_and_used() -> None:
    asked = " ".join([*(one.expr for one in RECORDINGS), *(alert.expr for alert in rules.alerts())])
    for one in RECORDINGS:
        assert re.fullmatch(r"(pair|port|engine):kvdiag_\w+:\w+", one.name)
        assert one.name in asked


def test_every_alert_says_where_its_threshold_comes_from() -> None:
    for alert in rules.alerts():
        assert re.match(r"(Any|No number|Judgement|Twice|A |The |Five |1 )", alert.why), alert.name
        assert alert.why.endswith("."), alert.name


@pytest.mark.parametrize("page", RUNBOOKS, ids=lambda page: page.stem)
def test_a_runbook_has_its_parts_and_names_what_exists(page: Path) -> None:
    text = page.read_text()
    assert [line for line in text.splitlines() if line.startswith("## ")] == HEADINGS
    alerts = [alert.name for alert in rules.alerts() if alert.page.endswith(f"runbooks/{page.name}")]
    assert alerts
    assert all(name in text for name in alerts)
    for code in re.findall(r"kvdiag explain ([A-Z]+\d+)", text):
        assert list((ROOT / "kvdiag/checks").glob(f"{code.lower()}_*.md")), code
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (page.parent / target).exists(), target
    for command in re.findall(r"`kvdiag probe (\w+)", text):
        assert command in _probes()


def _probes() -> set[str]:
    import typer

    found = typer.main.get_command(build_app())
    return set(found.commands["probe"].commands)  # type: ignore[attr-defined]
