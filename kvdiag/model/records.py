"""The exporter's document of its latest records (GET /api/records)."""

from dataclasses import dataclass
from typing import Literal

from kvdiag.model.document import Document
from kvdiag.model.record import HandleTransfer, WindowRecord
from kvdiag.model.transfer import TransferRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsDocument(Document):
    """The newest of each kind, the oldest first; `evidence` grades what is not plainly measured."""

    schema: Literal["kvdiag.records/1"] = "kvdiag.records/1"
    requests: tuple[TransferRecord, ...]
    transfers: tuple[HandleTransfer, ...]
    windows: tuple[WindowRecord, ...]
