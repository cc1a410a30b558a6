"""WC013: no transfer in the log ran out of receiver-not-ready retries."""

from kvdiag.checks.base import Check, Hosts, Outcome
from kvdiag.checks.completions import judge

CODE = "WC013"


def run(hosts: Hosts) -> Outcome:
    return judge(
        hosts,
        code=CODE,
        status=13,
        text="RNR retry counter exceeded",
        meaning=(
            "the far end posted no receive in time; KV blocks move by READ and WRITE, so this is a notification "
            "or a control message"
        ),
        action=(
            "look at the load and the progress thread of the process on {peer}: it does not drain its receive queue"
        ),
    )


CHECK = Check(code=CODE, title="no receiver-not-ready retries ran out", run=run, explained_by=("ENG013",))
