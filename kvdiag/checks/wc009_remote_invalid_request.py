"""WC009: no transfer in the log ended in a remote invalid request."""

from kvdiag.checks.base import Check, Hosts, Outcome
from kvdiag.checks.completions import judge

CODE = "WC009"


def run(hosts: Hosts) -> Outcome:
    return judge(
        hosts,
        code=CODE,
        status=9,
        text="remote invalid request error",
        meaning=(
            "the far end refused a malformed request, consistent with a path MTU that differs between the two ends"
        ),
        action=(
            "compare the active MTUs: kvdiag preflight --peer {peer}:18580, or ibv_devinfo -d {device} | grep "
            "active_mtu on both"
        ),
    )


CHECK = Check(code=CODE, title="no remote invalid requests", run=run, explained_by=("MTU001",))
