"""The JUnit form of a preflight, as continuous integration systems read it."""

import re
from xml.etree import ElementTree

from kvdiag.model.finding import Severity
from kvdiag.model.preflight import CheckResult, PreflightDocument, PreflightFinding

# What XML 1.0 cannot hold, not even escaped.
_UNPRINTABLE = re.compile(r"[^\t\n\r\x20-\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]")


def render(document: PreflightDocument) -> str:
    """Return one test suite: a case per check, and one per finding of a check that has some.

    A finding below `fail_on` is no failure but output of its case. Where too little was examined, a case has an error.
    """
    suite = ElementTree.Element("testsuite", name="kvdiag.preflight", hostname=document.host)
    suite.set("timestamp", document.time.partition(".")[0])
    properties = ElementTree.SubElement(suite, "properties")
    ElementTree.SubElement(properties, "property", name="kvdiag.version", value=document.version)
    counts = {"failures": 0, "errors": 0, "skipped": 0}
    if document.verdict.status == "undetermined":
        case = _case(suite, "kvdiag.preflight", "something can be examined")
        passed, hidden = document.verdict.passed, document.verdict.not_observable
        message = f"too little could be examined: {passed} of {passed + hidden} checks with something to judge saw it"
        ElementTree.SubElement(case, "error", type="undetermined", message=message)
        counts["errors"] += 1
    for result in document.checks:
        findings = [finding for finding in document.findings if finding.code == result.code]
        for finding in findings:
            case = _case(suite, _family(result.code), f"{result.code} {result.title}: {finding.subject}")
            counts["failures"] += _finding(case, finding, document.fail_on)
        if not findings:
            counts["skipped"] += _result(_case(suite, _family(result.code), f"{result.code} {result.title}"), result)
    for name, count in {"tests": len(suite.findall("testcase")), **counts}.items():
        suite.set(name, str(count))
    suite.set("time", "0")
    root = ElementTree.Element("testsuites")
    root.append(suite)
    for element in root.iter():
        element.text = _printable(element.text) if element.text else element.text
        for name, value in element.attrib.items():
            element.set(name, _printable(value))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _case(suite: ElementTree.Element, family: str, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=family, name=name, time="0")


def _family(code: str) -> str:
    return f"kvdiag.preflight.{code.rstrip('0123456789')}"


def _finding(case: ElementTree.Element, finding: PreflightFinding, fail_on: str) -> int:
    """Add the finding, and return 1 where it is a failure."""
    lines = [f"{item.name}: {item.value}{_wanted(item.threshold)} [{item.source}]" for item in finding.evidence]
    if finding.explained_by:
        lines.append(f"follows from {finding.explained_by}")
    lines.append(f"Do: {finding.action}")
    fails = finding.severity is Severity.CRITICAL or (finding.severity is Severity.WARNING and fail_on == "warning")
    if fails:
        failure = ElementTree.SubElement(case, "failure", type=finding.severity.value, message=finding.summary)
        failure.text = "\n".join(lines)
    else:
        output = ElementTree.SubElement(case, "system-out")
        output.text = "\n".join([f"{finding.severity.value}: {finding.summary}", *lines])
    return int(fails)


def _result(case: ElementTree.Element, result: CheckResult) -> int:
    """Add why a check did not judge, or what it passed, and return 1 where it is skipped."""
    if result.status == "passed":
        ElementTree.SubElement(case, "system-out").text = result.detail
        return 0
    ElementTree.SubElement(case, "skipped", message=f"{result.status.replace('_', ' ')}: {result.detail}")
    return 1


def _wanted(threshold: str | None) -> str:
    return f" (expected: {threshold})" if threshold else ""


def _printable(text: str) -> str:
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)
