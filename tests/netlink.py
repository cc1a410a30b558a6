"""A recorded RDMA netlink conversation, given back instead of the kernel's."""

from pathlib import Path
from typing import Any

from kvdiag.sources._nldev import Command

CAPTURE = Path(__file__).parent / "fixtures/netlink/rxe-two-threads.json"
"""What tests/lab/netlink_capture.py printed while tests/lab/netlink_holder.py held objects on rxe0."""


class Replay:
    """A channel that gives the recorded answer to each question, in any order."""

    def __init__(self, asked: list[dict[str, Any]]) -> None:
        self.asked = asked

    def ask(self, command: Command, attributes: bytes = b"", *, dump: bool = True) -> list[bytes]:
        for one in self.asked:
            if (one["command"], one["attributes"]) == (command.name, attributes.hex()):
                return [bytes.fromhex(payload) for payload in one["payloads"]]
        raise OSError(22, f"{command.name} was not recorded")
