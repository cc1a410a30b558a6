"""ENG017: TensorRT-LLM keeps blocks until they are sent."""

from kvdiag.checks.base import Check, Failed, Hosts, Outcome
from kvdiag.checks.logged import logged, none_logged, times
from kvdiag.model.finding import Finding, Severity

CODE = "ENG017"


def run(hosts: Hosts) -> Outcome:
    found = logged(hosts.local, "cover_missing")
    if not found:
        return none_logged(hosts, "no transfer without a buffer")
    return Failed(
        (
            Finding(
                code=CODE,
                severity=Severity.WARNING,
                subject="engine log",
                summary=(
                    f"{times(found)} transfer(s) found no block to send (bufferCoverTargetNum 0): consistent with "
                    "blocks "
                    "evicted from the reuse tree before they were sent; the generation side then waits for ever"
                ),
                evidence=(found[0].evidence("first"),),
                action=(
                    "set kv_transfer_timeout_ms in cache_transceiver_config so that the wait ends, and try "
                    "without block "
                    "reuse (kv_cache_config.enable_block_reuse: false) or with a release that keeps blocks until sent"
                ),
                host=hosts.local.host,
            ),
        )
    )


CHECK = Check(code=CODE, title="blocks are kept until they are sent", run=run)
