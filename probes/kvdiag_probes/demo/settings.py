"""What the orchestrator tells its two workers before they start."""

from pathlib import Path
from typing import Literal

import msgspec

TransportName = Literal["nixl", "tcp"]
PREFILL_NODE = "prefill-0"
DECODE_NODE = "decode-0"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """`rate` in requests per second, `surge` times that in the second half.

    `telemetry` holds a folder of NIXL's store per node, `records` gets the rows.
    """

    transport: TransportName
    seed: int
    rate: float
    duration_s: float
    surge: float = 1.0
    telemetry: str
    telemetry_port: int
    records: str

    def write(self, path: Path) -> None:
        """Write these settings as JSON."""
        path.write_bytes(msgspec.json.encode(self))

    @classmethod
    def read(cls, path: Path) -> "Settings":
        """Read what `write` wrote."""
        return msgspec.json.decode(path.read_bytes(), type=cls)
