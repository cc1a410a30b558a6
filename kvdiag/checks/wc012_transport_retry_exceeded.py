"""WC012: no transfer in the log ran out of transport retries."""

from kvdiag.checks.base import Check, Hosts, Outcome
from kvdiag.checks.completions import judge

CODE = "WC012"


def run(hosts: Hosts) -> Outcome:
    return judge(
        hosts,
        code=CODE,
        status=12,
        text="transport retry counter exceeded",
        meaning=("the far end did not answer: it cannot be reached on this path, or the path loses packets"),
        action=(
            "tell unreachable from lossy: kvdiag probe bandwidth {peer}:18580 --device {device}; then kvdiag "
            "preflight --peer {peer}:18580"
        ),
    )


CHECK = Check(
    code=CODE,
    title="no transfer ran out of retries",
    run=run,
    explained_by=("ENG040", "FAB002", "FAB004", "GID001", "GID002", "GID003", "MTU001", "NET001", "NET002"),
)
