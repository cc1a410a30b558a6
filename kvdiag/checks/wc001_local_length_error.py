"""WC001: no transfer in the log ended in a local length error."""

from kvdiag.checks.base import Check, Hosts, Outcome
from kvdiag.checks.completions import judge

CODE = "WC001"


def run(hosts: Hosts) -> Outcome:
    return judge(
        hosts,
        code=CODE,
        status=1,
        text="local length error",
        meaning=("consistent with a path MTU that differs between the two ends"),
        action=(
            "compare the active MTUs: kvdiag preflight --peer {peer}:18580, or ibv_devinfo -d {device} | grep "
            "active_mtu on both"
        ),
    )


CHECK = Check(code=CODE, title="no local length errors", run=run, explained_by=("MTU001",))
