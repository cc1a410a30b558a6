"""Run in a lab machine: print what RDMA netlink answers, and what the `rdma` program says of the same, as JSON.

tests/fixtures/netlink/rxe-two-threads.json is its output while netlink_holder held `rxe0 3`.
"""

import json
import subprocess
import sys
from pathlib import Path

from kvdiag.sources import rdma_netlink
from kvdiag.sources._nldev import Command, KernelChannel


class Recorder:
    """A channel that keeps each question with its answer."""

    def __init__(self, channel: KernelChannel) -> None:
        self.channel = channel
        self.asked: list[dict[str, object]] = []

    def ask(self, command: Command, attributes: bytes = b"", *, dump: bool = True) -> list[bytes]:
        payloads = self.channel.ask(command, attributes, dump=dump)
        self.asked.append(
            {"command": command.name, "attributes": attributes.hex(), "payloads": [one.hex() for one in payloads]}
        )
        return payloads


def rdma(*arguments: str) -> object:
    """Return what `rdma -j` prints."""
    return json.loads(subprocess.run(["rdma", "-j", *arguments], capture_output=True, text=True, check=True).stdout)


def main() -> None:
    with KernelChannel() as channel:
        recorder = Recorder(channel)
        resources = rdma_netlink.read_resources(channel=recorder)
    threads = {
        task.name: [int(process.name), (process / "comm").read_text().strip()]
        for process in Path("/proc").glob("[0-9]*")
        for task in (process / "task").iterdir()
    }
    document = {
        "asked": recorder.asked,
        "read": {
            "summaries": [{"device": one.device, **one.counts} for one in resources.summaries],
            "qp": [[one.device, one.lqpn, one.type, one.state, str(one.pid)] for one in resources.queue_pairs],
            "mr": [[one.device, one.mrn, one.length, str(one.pid)] for one in resources.memory_regions],
            "others": [[one.device, one.kind, str(one.pid), one.count] for one in resources.others],
        },
        "rdma": {
            "summary": rdma("resource", "show"),
            **{kind: rdma("resource", "show", kind) for kind in ("qp", "mr", "pd", "cq", "cm_id")},
        },
        "threads": threads,
    }
    json.dump(document, sys.stdout)


main()
