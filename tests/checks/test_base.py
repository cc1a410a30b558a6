from pathlib import Path

import pytest

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed, judge, run
from kvdiag.model.finding import Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import RdmaDevices
from kvdiag.model.snapshot import Snapshot
from kvdiag.sources.base import Context, collect
from tests.trees import write_tree

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


@pytest.mark.parametrize(
    ("dangling", "needs", "expected"),
    [
        (
            True,
            True,
            NotObservable("mlx5_0 in /sys/class/infiniband lead nowhere: nothing of them is seen (CNT001)"),
        ),
        (True, False, NotApplicable("no port")),
        (False, True, NotApplicable("no port")),
    ],
)
def test_nothing_is_said_to_be_absent_of_devices_that_lead_nowhere(
    dangling: bool, needs: bool, expected: Outcome, tmp_path: Path
) -> None:
    base = "base dual-port-second-unused" + ("\n- sys/devices\n- sys/class/infiniband/mlx5_1" if dangling else "")
    snapshot = collect(Context(root=write_tree(base, tmp_path), live=False))

    def nothing(hosts: Hosts) -> Outcome:
        devices = hosts.local.part(RdmaDevices)
        return NotObservable(devices.missing) if needs and isinstance(devices, Missing) else NotApplicable("no port")

    check = Check(code="AAA004", title="needs ports", run=nothing)
    assert judge(check, Hosts(local=snapshot)) == expected
