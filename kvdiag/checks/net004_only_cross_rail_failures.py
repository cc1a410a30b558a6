"""NET004: failed transfers in the log are not only those between unlike cards."""

from collections import Counter

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, Outcome
from kvdiag.checks.completions import completions
from kvdiag.checks.logged import Logged, logged, none_logged
from kvdiag.derive.rdma import joined
from kvdiag.derive.setting import group_here, set_variable
from kvdiag.model.finding import Evidence, Finding, Severity

CODE = "NET004"
_RETRY_EXCEEDED = 12
_PAIRS_AT_LEAST = 2
"""One pair of cards may as well be one sick card (FAB004)."""


def run(hosts: Hosts) -> Outcome:
    if not logged(hosts.local):
        return none_logged(hosts, "no failed transfer")
    named = [
        item for item in completions(hosts.local, _RETRY_EXCEEDED) if item.field("device") and item.field("peer_device")
    ]
    if not named:
        return none_logged(hosts, "no transfer that ran out of retries names the cards of both ends,")
    pairs: Counter[tuple[str, str]] = Counter()
    for item in named:
        pairs[item.field("device"), item.field("peer_device")] += item.event.count
    alike = sum(count for (here, there), count in pairs.items() if here == there)
    if alike:
        return NotApplicable(f"{alike} of {sum(pairs.values())} failed transfers were between cards of one name")
    if len(pairs) < _PAIRS_AT_LEAST or len({here for here, _ in pairs}) < _PAIRS_AT_LEAST:
        return NotApplicable(f"failed transfers of one local card only: {joined(map(_pair, pairs))}")
    return Failed((_finding(hosts, named, pairs),))


def _pair(pair: tuple[str, str]) -> str:
    return f"{pair[0]}-{pair[1]}"


def _finding(hosts: Hosts, named: list[Logged], pairs: Counter[tuple[str, str]]) -> Finding:
    devices = sorted({here for here, _ in pairs})
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject="rails",
        summary=(
            f"all {sum(pairs.values())} transfers that ran out of retries were between cards of different names "
            f"({len(pairs)} pairs), none between like ones: consistent with rails that are isolated from each other"
        ),
        evidence=(
            Evidence(
                name="local card-remote card",
                value=joined(f"{_pair(pair)} ({count})" for pair, count in pairs.most_common()),
                source=named[0].source,
                threshold="failures between like cards too, if the cards or the fabric were at fault",
            ),
            named[0].evidence("first"),
        ),
        action=(
            "compare the routes: kvdiag preflight --peer PEER:18580 (NET001); keep Mooncake on like cards: "
            f"{set_variable(group_here(hosts.local), 'MC_ENABLE_DEST_DEVICE_AFFINITY', 1)}, "
            f"or give each rank one card: --disaggregation-ib-device {devices[0]}"
        ),
        host=hosts.local.host,
        devices=tuple(devices),
    )


CHECK = Check(
    code=CODE,
    title="failed transfers are not only between unlike cards",
    run=run,
    explains=("WC012",),
    explained_by=("FAB002", "NET001", "NET002", "NET003"),
)
