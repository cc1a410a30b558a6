"""WC010: no transfer in the log ended in a remote access error."""

from kvdiag.checks.base import Check, Hosts, Outcome
from kvdiag.checks.completions import judge

CODE = "WC010"


def run(hosts: Hosts) -> Outcome:
    return judge(
        hosts,
        code=CODE,
        status=10,
        text="remote access error",
        meaning=(
            "the far end holds no valid registration for the address and key it was given (freed, expired, or "
            "from before a restart)"
        ),
        action=(
            "look at the far end ({peer}) at the time of the first line: a restart, a freed KV pool, or an "
            "expired lease (kvdiag explain ENG010)"
        ),
    )


CHECK = Check(
    code=CODE, title="no remote access errors", run=run, explained_by=("ENG010", "ENG013", "GDR010", "GDR011")
)
