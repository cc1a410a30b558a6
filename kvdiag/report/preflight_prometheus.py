"""The form of a preflight that the textfile collector of Prometheus's node exporter reads."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from kvdiag.model.preflight import CheckResult, PreflightDocument

_STATUSES = ("passed", "warning", "critical", "undetermined")


def render(document: PreflightDocument) -> str:
    """Return text exposition format 0.0.4; the series are one per check and a fixed few, whatever is found."""
    verdict = document.verdict
    families: list[tuple[str, str, Iterable[tuple[Mapping[str, str], float]]]] = [
        (
            "kvdiag_preflight_run_timestamp_seconds",
            "When this host was last judged, in seconds since the epoch.",
            [({}, datetime.fromisoformat(document.time).timestamp())],
        ),
        (
            "kvdiag_preflight_exit_code",
            "Exit code of the run: 0 passed, 1 warnings, 2 critical findings, 3 too little could be examined.",
            [({}, int(document.exit_code))],
        ),
        (
            "kvdiag_preflight_status",
            "1 for the verdict on this host, 0 for the others.",
            [({"status": status}, int(verdict.status == status)) for status in _STATUSES],
        ),
        (
            "kvdiag_preflight_findings",
            "Findings that no other finding explains, by severity.",
            [({"severity": name}, getattr(verdict, name)) for name in ("critical", "warning", "info")],
        ),
        ("kvdiag_preflight_waived_findings", "Findings that a waiver takes out.", [({}, verdict.waived)]),
        (
            "kvdiag_preflight_check_status",
            "1 for what each check answered; severity is that of its gravest finding, and absent where it has none.",
            [(_answer(document, result), 1) for result in document.checks],
        ),
    ]
    lines = []
    for name, help_, samples in families:
        lines += [f"# HELP {name} {help_}", f"# TYPE {name} gauge"]
        lines += [f"{name}{_labels(labels)} {value!r}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _answer(document: PreflightDocument, result: CheckResult) -> Mapping[str, str]:
    found = [finding.severity for finding in document.findings if finding.code == result.code]
    gravest = {"severity": min(found, key=lambda severity: severity.rank).value} if found else {}
    return {"code": result.code, "status": result.status, **gravest}


def _labels(labels: Mapping[str, str]) -> str:
    # Codes and fixed words only: nothing here needs escaping.
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}" if labels else ""
