from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, Outcome, Passed, run
from kvdiag.model.finding import Severity
from kvdiag.model.snapshot import Snapshot

HOSTS = Hosts(local=Snapshot(host="a", time_s=0.0))


def broken(hosts: Hosts) -> Outcome:
    raise KeyError("no such\nkey")


def test_a_check_that_raises_hides_no_other_and_is_itself_reported() -> None:
    first, second = run(
        HOSTS,
        (
            Check(code="AAA001", title="breaks", run=broken),
            Check(code="AAA002", title="works", run=lambda hosts: Passed("all")),
        ),
    )
    assert isinstance(first.outcome, Failed)
    (finding,) = first.outcome.findings
    assert finding.severity is Severity.WARNING
    assert "could not be run: KeyError: 'no such\\nkey'" in finding.summary
    assert second.outcome == Passed("all")


def test_a_check_may_not_apply() -> None:
    (judged,) = run(HOSTS, (Check(code="AAA003", title="asks", run=lambda hosts: NotApplicable("no peer")),))
    assert judged.outcome == NotApplicable("no peer")
