"""CNT003: counters hold numbers, not a text that stands for none."""

from collections import Counter

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.rdma import joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import RdmaCounters

CODE = "CNT003"
NO_VALUE = "not a number"
"""How the source names a file that holds text."""


def run(hosts: Hosts) -> Outcome:
    counters = hosts.local.part(RdmaCounters)
    if isinstance(counters, Missing):
        return NotObservable(counters.missing)
    number = sum(len(item.counters) + len(item.hw_counters) for item in counters.ports)
    texts = [
        (item, name, why)
        for item in counters.ports
        for name, why in sorted(item.unreadable.items())
        if why.endswith(NO_VALUE)
    ]
    if not texts and not number:
        return NotApplicable("no RDMA port with counters")
    if not texts:
        return Passed(f"{number} counters of {len(counters.ports)} port(s) hold numbers")
    per_port = Counter(f"{item.device}/{item.port}" for item, _, _ in texts)
    return Failed(
        (
            Finding(
                code=CODE,
                # The driver has no such counter: transfers are not concerned, only what monitors make of it.
                severity=Severity.INFO,
                subject=joined(per_port),
                summary=f"{len(texts)} counter(s) hold text instead of a number: they are absent, and not zero",
                evidence=tuple(
                    Evidence(
                        name=f"{item.device}/{item.port} {name}",
                        value=why,
                        source=f"/sys/class/infiniband/{item.device}/ports/{item.port}/{name}",
                        threshold="a number",
                    )
                    for item, name, why in texts[:3]
                ),
                action=(
                    "leave these ports out of panels and alerts on errors and bytes, or use a kernel whose "
                    "driver answers "
                    "performance queries (process_mad)"
                ),
                host=hosts.local.host,
                devices=tuple(dict.fromkeys(item.device for item, _, _ in texts)),
            ),
        )
    )


CHECK = Check(code=CODE, title="counters hold numbers", run=run)
