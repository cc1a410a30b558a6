"""The file that `kvdiag snapshot` writes and `kvdiag preflight --snapshot` replays."""

from dataclasses import dataclass
from typing import Any, Literal

from kvdiag.model.document import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDocument(Document):
    """`parts` by the name of their type, in the JSON form that a peer sends too; `missing` why the others are absent.

    `redacted` says that addresses, GUIDs, host names and secrets were replaced.
    """

    schema: Literal["kvdiag.snapshot/1"]
    redacted: bool
    parts: dict[str, dict[str, Any]]
    missing: dict[str, str]
