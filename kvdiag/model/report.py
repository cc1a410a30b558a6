"""What `kvdiag report` read and wrote."""

from dataclasses import dataclass
from typing import Literal

from kvdiag.model.demo import DemoDocument
from kvdiag.model.diagnosis import Diagnosis, DiagnosisDocument
from kvdiag.model.document import Document
from kvdiag.model.overview import Overview
from kvdiag.model.preflight import PreflightDocument
from kvdiag.model.probe import ProbeDocument
from kvdiag.model.probe_cold import ColdDocument
from kvdiag.model.probe_compare import CompareDocument
from kvdiag.model.probe_connections import ConnectionsDocument
from kvdiag.model.probe_kv import KvDocument
from kvdiag.model.probe_register import RegisterDocument


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportInput:
    """One input: where it lay, what it is (`kind` is a schema's name), its size, when it was last changed (RFC 3339),
    which version of kvdiag on which host made it (None where it does not say), and what was left out of it.
    """

    path: str
    kind: str
    bytes: int
    modified: str
    made_by: str | None
    made_on: str | None
    made_at: str | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosedBundle:
    """A trace bundle's diagnosis, and the bundle summed up for drawing."""

    diagnosis: Diagnosis
    overview: Overview


ReportDocumentInput = (
    DiagnosisDocument
    | DemoDocument
    | PreflightDocument
    | ProbeDocument
    | KvDocument
    | RegisterDocument
    | ConnectionsDocument
    | ColdDocument
    | CompareDocument
)
Content = DiagnosedBundle | ReportDocumentInput


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportItem:
    """One input and what was read from it."""

    input: ReportInput
    content: Content


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSummary:
    """An input's line in the report's index: what was found, and how grave it is."""

    input: ReportInput
    state: Literal["critical", "warning", "good", "unknown"]
    found: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDocument(Document):
    """`kvdiag report --format json`: the file that was written and what is in it."""

    schema: Literal["kvdiag.report/1"]
    output: str
    bytes: int
    inputs: tuple[ReportSummary, ...]
