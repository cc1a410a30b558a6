"""What `kvdiag demo` answers: what was done to the run, what the diagnosis found in its recording, and where it is."""

from dataclasses import dataclass
from typing import Literal

from kvdiag.model.diagnosis import Diagnosis, Verdict
from kvdiag.model.document import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoDocument(Document):
    """`fault_injected` began `fault_offset_s` seconds after the first possible arrival (None: nothing was done).

    `expected_cause` is what a right verdict names, None where it must name nothing; `matched` compares the two.
    `isolated`: each process had its own network namespace. `metrics_sample` are lines that the exporter served.
    """

    schema: Literal["kvdiag.demo/1"]
    verdict: Verdict
    fault_injected: str
    fault_description: str
    fault_offset_s: float | None
    expected_cause: str | None
    matched: bool
    transport: Literal["nixl", "tcp"]
    isolated: bool
    seed: int
    rate: float
    duration_s: float
    requests: int
    metrics_address: str
    metrics_sample: tuple[str, ...]
    bundle: str
    notes: tuple[str, ...]
    diagnosis: Diagnosis
