"""Every tree of tests/fixtures/checks/CODE answers as its name says; KVDIAG_UPDATE_GOLDEN=1 rewrites the answers.

`fail*.tree` has findings of this check, `pass*.tree` none; `not_applicable*.tree` and `not_observable*.tree` a reason.
"""

import os
from pathlib import Path

import pytest

from kvdiag.checks.base import (
    Failed,
    Hosts,
    Judged,
    NotApplicable,
    NotObservable,
    Outcome,
    Passed,
    discover,
    judge,
    run,
)
from kvdiag.checks.first_cause import group
from kvdiag.model.finding import Finding, Severity
from kvdiag.sources.base import Context, collect
from tests.trees import write_peer_tree, write_tree

FOLDER = Path(__file__).parents[1] / "fixtures" / "checks"
TREES = sorted(FOLDER.glob("*/*.tree"))
CHECKS = {check.code.lower(): check for check in discover()}
EXPECTED: dict[str, type[Outcome]] = {
    "fail": Failed,
    "pass": Passed,
    "not_applicable": NotApplicable,
    "not_observable": NotObservable,
}


def read_hosts(tree: Path, folder: Path) -> Hosts:
    text = tree.read_text()
    peer = write_peer_tree(text, folder / "peer")
    return Hosts(
        local=collect(Context(root=write_tree(text, folder / "host"), live=False)),
        peers=(collect(Context(root=peer, live=False)),) if peer else (),
    )


def shown(outcome: Outcome) -> str:
    if isinstance(outcome, Failed):
        return "\n".join(map(_finding, outcome.findings))
    return (outcome.examined if isinstance(outcome, Passed) else outcome.reason) + "\n"


def _finding(finding: Finding) -> str:
    lines = [f"{finding.severity.value} {finding.subject}: {finding.summary}"]
    for item in finding.evidence:
        wanted = f" (expected: {item.threshold})" if item.threshold else ""
        lines.append(f"  {item.name}: {item.value}{wanted} [{item.source}]")
    return "\n".join([*lines, f"  do: {finding.action}", ""])


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: f"{tree.parent.name}-{tree.stem}")
def test_the_tree_answers_as_its_name_says(tree: Path, tmp_path: Path) -> None:
    hosts = read_hosts(tree, tmp_path)
    outcome = judge(CHECKS[tree.parent.name], hosts)
    kind = tree.stem.partition("-")[0]
    assert isinstance(outcome, EXPECTED[kind]), outcome
    golden = tree.with_suffix(".txt")
    if os.environ.get("KVDIAG_UPDATE_GOLDEN"):
        golden.write_text(shown(outcome))
    assert shown(outcome) == golden.read_text()


@pytest.mark.parametrize(
    "tree", [tree for tree in TREES if tree.stem.startswith("fail")], ids=lambda tree: f"{tree.parent.name}-{tree.stem}"
)
def test_every_critical_finding_belongs_to_the_fault_of_the_tree(tree: Path, tmp_path: Path) -> None:
    for item in group(run(read_hosts(tree, tmp_path))):
        if item.sort_key[0] == Severity.CRITICAL.rank:
            assert item.cause.code.lower() == tree.parent.name, item


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: f"{tree.parent.name}-{tree.stem}")
def test_the_other_checks_of_the_tree_can_be_run(tree: Path, tmp_path: Path) -> None:
    hosts = read_hosts(tree, tmp_path)
    for judged in run(hosts):
        assert isinstance(judged, Judged)
        assert judged.outcome == judge(judged.check, hosts), judged.check.code
