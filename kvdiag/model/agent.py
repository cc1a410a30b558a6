"""What `kvdiag agent --format json` prints once it listens."""

from dataclasses import dataclass
from typing import Literal

from kvdiag.model.document import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDocument(Document):
    """`listen` is ADDRESS:PORT as a probe takes it; `authentication` what a probe must present."""

    schema: Literal["kvdiag.agent/1"]
    listen: str
    protocol: int
    authentication: Literal["none", "token", "tls", "token+tls"]
    max_sessions: int
    max_buffer_bytes: int
    session_idle_s: float
