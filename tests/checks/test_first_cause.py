from collections.abc import Iterable

from kvdiag.checks.base import Check, Failed, Judged, Passed
from kvdiag.checks.first_cause import group
from kvdiag.checks.verdict import summarise
from kvdiag.model.finding import Finding, Severity


def finding(
    code: str, *, severity: Severity = Severity.CRITICAL, devices: tuple[str, ...] = (), host: str = "a"
) -> Finding:
    return Finding(
        code=code, severity=severity, subject="s", summary=code, evidence=(), action="", host=host, devices=devices
    )


def judged(
    *findings: Finding, explains: Iterable[str] = (), explained_by: Iterable[str] = (), code: str = ""
) -> Judged:
    check = Check(
        code=code or findings[0].code,
        title="",
        run=lambda hosts: Passed(""),
        explains=tuple(explains),
        explained_by=tuple(explained_by),
    )
    return Judged(check, Failed(findings) if findings else Passed(""))


def shape(items: Iterable[Judged]) -> list[tuple[str, list[str]]]:
    return [(item.cause.code, [found.code for found in item.consequences]) for item in group(items)]


def test_either_file_may_declare_the_explanation() -> None:
    cause, effect = finding("A001"), finding("B001")
    assert shape([judged(cause, explains=["B001"]), judged(effect)]) == [("A001", ["B001"])]
    assert shape([judged(cause), judged(effect, explained_by=["A001"])]) == [("A001", ["B001"])]


def test_a_chain_ends_at_its_first_cause() -> None:
    items = [
        judged(finding("A001"), explained_by=["B001"]),
        judged(finding("B001"), explained_by=["C001"]),
        judged(finding("C001")),
    ]
    assert shape(items) == [("C001", ["A001", "B001"])]


def test_another_device_another_host_and_a_note_explain_nothing() -> None:
    effect = judged(finding("B001", devices=("mlx5_0",)))
    for cause in (
        finding("A001", devices=("mlx5_1",)),
        finding("A001", host="b"),
        finding("A001", severity=Severity.INFO),
    ):
        assert sorted(shape([judged(cause, explains=["B001"]), effect])) == [("A001", []), ("B001", [])]


def test_a_note_explains_another_note() -> None:
    items = [
        judged(finding("A001", severity=Severity.INFO), explains=["B001"]),
        judged(finding("B001", severity=Severity.INFO)),
    ]
    assert shape(items) == [("A001", ["B001"])]


def test_two_that_explain_each_other_stay_together_and_end() -> None:
    items = [judged(finding("A001"), explained_by=["B001"]), judged(finding("B001"), explained_by=["A001"])]
    assert shape(items) == [("A001", ["B001"])]


def test_a_group_is_as_grave_as_its_gravest_member() -> None:
    items = [
        judged(finding("A001", severity=Severity.WARNING), explains=["B001"]),
        judged(finding("B001")),
        judged(finding("C001", severity=Severity.WARNING)),
        judged(code="D001"),
    ]
    assert shape(items) == [("A001", ["B001"]), ("C001", [])]
    verdict, findings, results = summarise(items)
    assert (verdict.status, verdict.critical, verdict.warning, verdict.explained) == ("critical", 1, 1, 1)
    assert [(item.code, item.explained_by) for item in findings] == [("A001", None), ("B001", "A001"), ("C001", None)]
    assert [item.status for item in results] == ["failed", "failed", "failed", "passed"]


def test_every_finding_is_in_exactly_one_group() -> None:
    items = [judged(finding("A001"), finding("A001", devices=("x",)), explains=["B001"]), judged(finding("B001"))]
    assert sorted(code for cause, rest in shape(items) for code in (cause, *rest)) == ["A001", "A001", "B001"]
