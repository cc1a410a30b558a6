"""Per-request transfer records, followed as another program appends them: one JSON object a line."""

from pathlib import Path

import msgspec

from kvdiag.model.transfer import TransferRecord
from kvdiag.sources.line_follower import LINE_BYTES, READ_BYTES, LineFollower

__all__ = ["LINE_BYTES", "READ_BYTES", "RecordFollower"]


class RecordFollower(LineFollower[TransferRecord]):
    """Reads each record of a growing file once; its errors name the field of the line that is no record."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, msgspec.json.Decoder(TransferRecord).decode)
