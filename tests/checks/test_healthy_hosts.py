"""No false alarm: hosts in order, alone and in pairs, give no warning, and every check that judges nothing there says
why. KVDIAG_UPDATE_GOLDEN=1 rewrites these reasons in tests/fixtures/skips: read them. A check that is in none of these
files is new, and its reasons are not looked at.
"""

import os

import pytest

from kvdiag.checks.base import Failed, Hosts, NotApplicable, NotObservable, run
from kvdiag.model.finding import Severity
from kvdiag.sources.base import Context, collect
from tests.trees import HOSTS

SICK = ("container-without-provider", "missing-address")
HEALTHY = sorted(folder.name for folder in HOSTS.iterdir() if folder.is_dir() and folder.name not in SICK)
NOTES = {"no-rdma": ["TRN002"]}
"""Findings of severity info, by host; a host that is not named here gives none."""


@pytest.mark.parametrize("name", HEALTHY)
def test_a_host_in_order_gives_no_warning(name: str) -> None:
    judged = run(Hosts(local=collect(Context(root=HOSTS / name, live=False))))
    findings = [finding for item in judged if isinstance(item.outcome, Failed) for finding in item.outcome.findings]
    assert [finding for finding in findings if finding.severity is not Severity.INFO] == []
    assert [finding.code for finding in findings] == NOTES.get(name, [])


@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_not_judged_has_its_reason(name: str) -> None:
    skipped = "".join(
        f"{item.check.code} {kind}: {item.outcome.reason}\n"
        for kind, outcome in (("not applicable", NotApplicable), ("not observable", NotObservable))
        for item in run(Hosts(local=collect(Context(root=HOSTS / name, live=False))))
        if isinstance(item.outcome, outcome)
    )
    golden = HOSTS.parent / "skips" / f"{name}.txt"
    if os.environ.get("KVDIAG_UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(skipped)
    known = {line.partition(" ")[0] for file in golden.parent.iterdir() for line in file.read_text().splitlines()}
    expected = golden.read_text().splitlines()
    assert [line for line in skipped.splitlines() if line.partition(" ")[0] in known] == expected


@pytest.mark.parametrize("name", HEALTHY)
def test_a_pair_of_equal_hosts_gives_no_warning(name: str) -> None:
    snapshot = collect(Context(root=HOSTS / name, live=False))
    judged = run(Hosts(local=snapshot, peers=(snapshot, snapshot)))
    findings = [finding for item in judged if isinstance(item.outcome, Failed) for finding in item.outcome.findings]
    assert [finding for finding in findings if finding.severity is not Severity.INFO] == []
