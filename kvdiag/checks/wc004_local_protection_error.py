"""WC004: no transfer in the log ended in a local protection error."""

from kvdiag.checks.base import Check, Hosts, Outcome
from kvdiag.checks.completions import judge

CODE = "WC004"


def run(hosts: Hosts) -> Outcome:
    return judge(
        hosts,
        code=CODE,
        status=4,
        text="local protection error",
        meaning=(
            "the adapter may not touch the local memory it was told to use (not registered, or its mapping is gone)"
        ),
        action=(
            "look for a registration error above the first such line; restart with the KV pool registered, and "
            "read GDR001 if the memory is on a GPU"
        ),
    )


CHECK = Check(
    code=CODE, title="no local protection errors", run=run, explained_by=("ENG040", "GDR001", "GDR002", "GDR010")
)
