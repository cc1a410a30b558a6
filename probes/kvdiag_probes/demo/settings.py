"""What the orchestrator tells its two workers before they start."""

from pathlib import Path
from typing import Literal

import msgspec

TransportName = Literal["nixl", "tcp"]
PREFILL_NODE = "prefill-0"
DECODE_NODE = "decode-0"
POLL_S = 0.0002
"""Pause between two looks at a transfer under way: an engine's own loop is no finer."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """`rate` in requests per second, `surge` times that in the second half.

    `telemetry` holds a folder of NIXL's store per node, `records` gets the rows. `tls` is what UCX may use; with
    `tcp_device` a second pair of agents uses TCP over that interface, for the fault "tcp". `prompt_scale` multiplies
    the prompts' lengths, `poll_s` is the pause between two looks at a transfer under way, `clock_offset_ns` is what
    decode's monotonic clock is ahead of prefill's, in another machine.
    """

    transport: TransportName
    seed: int
    rate: float
    duration_s: float
    surge: float = 1.0
    tls: str = "tcp"
    tcp_device: str = ""
    prompt_scale: float = 1.0
    poll_s: float = POLL_S
    clock_offset_ns: int = 0
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
