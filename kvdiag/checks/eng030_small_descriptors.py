"""ENG030: KV transfers are made of pieces that are large enough."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, Outcome, Passed
from kvdiag.checks.logged import Logged, logged, none_logged
from kvdiag.derive.engines import setups
from kvdiag.model.engine import EngineSetup
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import present

CODE = "ENG030"
_SMALL_BYTES = 64 << 10
_MANY = 5000
"""Both from one public report: about 8 KiB in tens of thousands of pieces cost 105 ms of 263 ms, and four times larger
blocks took about 58 ms of it away."""
_BLOCK_SIZE = 16
"""vLLM's default on GPUs, in tokens."""


def run(hosts: Hosts) -> Outcome:
    found = [item for item in logged(hosts.local, "kv_statistics") if item.event.numbers.get("transfers")]
    if not found:
        outcome = none_logged(hosts, "no statistics of transfers")
        return NotApplicable(outcome.examined) if isinstance(outcome, Passed) else outcome
    worst = min(found, key=_each)
    numbers = worst.event.numbers
    if not numbers["descriptors"]:
        return NotApplicable(f"{worst.log.path} counts no descriptors")
    many = numbers["descriptors"] / numbers["transfers"]
    shown = f"{_each(worst) / 1024:.1f} KiB per descriptor, {many:.0f} descriptors per transfer"
    if _each(worst) >= _SMALL_BYTES or many <= _MANY:
        return Passed(f"{shown}, over {numbers['transfers']:.0f} transfers in {worst.log.path}")
    post = f"{numbers['post_s'] / numbers['xfer_s']:.0%}" if numbers["xfer_s"] else "unknown"
    users = [item for item in present(setups(hosts.local)) or () if item.connectors and item.process.engine == "vllm"]
    return Failed(
        (
            Finding(
                code=CODE,
                severity=Severity.WARNING,
                subject="engine log",
                summary=(
                    f"KV transfers are cut into small pieces ({shown}): each piece costs, whatever the network "
                    "can carry"
                ),
                evidence=(
                    Evidence(
                        name="bytes per descriptor",
                        value=f"{_each(worst):.0f} over {numbers['transfers']:.0f} transfers",
                        source=worst.source,
                        threshold=f"{_SMALL_BYTES} or more, or at most {_MANY} descriptors per transfer",
                    ),
                    Evidence(name="time spent posting", value=f"{post} of the transfer time", source=worst.source),
                    *(
                        Evidence(
                            name="block size",
                            value=f"{_block(item)} tokens",
                            source=f"/proc/{item.process.pid}/cmdline",
                        )
                        for item in users[:1]
                    ),
                ),
                action=(
                    f"start both sides with --block-size {4 * _block(users[0]) if users else 4 * _BLOCK_SIZE} and "
                    "VLLM_KV_CACHE_LAYOUT=HND, and compare `Avg post time` and `Avg number of descriptors` in the log"
                ),
                host=hosts.local.host,
            ),
        )
    )


def _each(item: Logged) -> float:
    numbers = item.event.numbers
    return numbers["bytes"] / numbers["descriptors"] if numbers["descriptors"] else float("inf")


def _block(setup: EngineSetup) -> int:
    value = setup.option("--block-size") or ""
    return int(value) if value.isdecimal() and 0 < int(value) <= 4096 else _BLOCK_SIZE


CHECK = Check(code=CODE, title="KV transfers are made of large pieces", run=run)
