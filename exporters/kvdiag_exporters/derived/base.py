"""What a derivation is, what it is given, and how all of them are found."""

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import kvdiag_exporters.derived
from kvdiag.model.finding import Finding
from kvdiag_exporters.catalog import Metric, Sample
from kvdiag_exporters.collectors.base import Setup

Key = tuple[str, tuple[str, ...]]
"""A series: the metric's name and the label values."""

FINDING = Metric(
    name="kvdiag_finding",
    kind="gauge",
    labels=("node", "code", "severity", "subject"),
    help="1 while the finding holds; /healthz has its numbers and what to do.",
)

METRICS = (FINDING,)


@dataclass(slots=True)
class Derived:
    """`samples` to add, `dropped` series not to pass on, `findings` that hold now."""

    samples: list[Sample] = field(default_factory=list)
    dropped: set[Key] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)


class Derivation(Protocol):
    """Called once per collection, in order of the file names; what it keeps of earlier ones is its own business."""

    def derive(self, samples: Sequence[Sample], monotonic_s: float) -> Derived: ...


def create_all(setup: Setup) -> dict[str, Derivation]:
    """Return every derivation by the name of its file, in order."""
    found: dict[str, Derivation] = {}
    for module_info in sorted(pkgutil.iter_modules(kvdiag_exporters.derived.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"kvdiag_exporters.derived.{module_info.name}")
        create = getattr(module, "create", None)
        derivation = None if create is None else create(setup)
        if derivation is not None:
            found[module_info.name] = derivation
    return found


def finding_samples(findings: Sequence[Finding]) -> list[Sample]:
    """Return one sample per finding; those that differ only in their numbers are one."""
    labels = {(one.host, one.code, one.severity.value, one.subject) for one in findings}
    return [FINDING.sample(1.0, *one) for one in sorted(labels)]
