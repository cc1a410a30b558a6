"""ENG012: no KV transfer failed, or its requests were ended with an error."""

from kvdiag.checks.base import Check, Failed, Hosts, Outcome
from kvdiag.checks.completions import peer_host
from kvdiag.checks.logged import Logged, logged, none_logged, times
from kvdiag.derive.engines import setups
from kvdiag.derive.rdma import joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import present

CODE = "ENG012"
_LOADING = ("transfer_failed", "transfer_exception")
"""Failures after which blocks are missing on decode; a failed handshake or notification loads nothing."""


def run(hosts: Hosts) -> Outcome:
    failed = logged(hosts.local, "kv_transfer_failed")
    ended = logged(hosts.local, "kv_load_failed")
    statistics = logged(hosts.local, "kv_statistics")
    counted = int(sum(item.event.numbers.get("failed", 0.0) for item in statistics))
    if not failed and not ended and not counted:
        return none_logged(hosts, "no failed KV transfer")
    loading = tuple(item for item in failed if item.field("type") in _LOADING)
    policies = _policies(hosts, ended)
    # vLLM 0.32 with policy "fail", recorded with a killed peer: every request ends with an error and no token. A public
    # report has corrupt answers with HTTP 200 where the requests went on.
    went_on = bool(loading or (counted and not failed)) and not (ended and policies <= {"fail"})
    kinds = joined(sorted({item.field("type") for item in failed})) or "counted only"
    peers = joined(dict.fromkeys(peer_host(item) for item in failed if item.field("peer")))
    number = max(times(failed), counted)
    if went_on:
        meaning = "what became of their requests is not logged: answers may be corrupt, with HTTP status 200"
    elif loading or ended:
        meaning = "their requests ended with an error"
    elif {item.field("type") for item in failed} == {"notification_failed"}:
        meaning = "prefill keeps their blocks until the lease ends"
    else:
        meaning = "their prompts are computed again"
    action = "find why the first one failed: the lines above it, and the peer's log at that time"
    if went_on:
        action += (
            '; until then run decode with "kv_load_failure_policy":"fail" in --kv-transfer-config, so that no '
            "answer is "
            "made of missing blocks"
        )
    return Failed(
        (
            Finding(
                code=CODE,
                severity=Severity.CRITICAL if went_on else Severity.WARNING,
                subject="engine log",
                summary=f"{number} KV transfer(s) failed ({kinds}){f' from {peers}' if peers else ''}: {meaning}",
                evidence=_evidence(failed, ended, statistics, counted, policies),
                action=action,
                host=hosts.local.host,
            ),
        )
    )


def _policies(hosts: Hosts, ended: tuple[Logged, ...]) -> set[str]:
    logged_ones = {item.field("policy") for item in ended if item.field("policy")}
    if logged_ones:
        return logged_ones
    found = present(setups(hosts.local)) or ()
    return {
        value
        for setup in found
        for connector in setup.connectors
        if (value := connector.setting("kv_load_failure_policy"))
    }


def _evidence(
    failed: tuple[Logged, ...],
    ended: tuple[Logged, ...],
    statistics: tuple[Logged, ...],
    counted: int,
    policies: set[str],
) -> tuple[Evidence, ...]:
    found = [item.evidence("logged") for item in (*failed[:2], *ended[:1])]
    if counted:
        found.append(
            Evidence(name="KV Transfer metrics", value=f"{counted} failed transfers", source=statistics[0].source)
        )
    if policies:
        source = ended[0].source if ended else "--kv-transfer-config"
        found.append(Evidence(name="kv_load_failure_policy", value=joined(sorted(policies)), source=source))
    return tuple(found)


CHECK = Check(
    code=CODE,
    title="no KV transfer failed",
    run=run,
    explained_by=(
        "ENG001",
        "ENG004",
        "ENG005",
        "ENG013",
        "ENG040",
        "FAB004",
        "WC001",
        "WC004",
        "WC009",
        "WC010",
        "WC012",
    ),
)
