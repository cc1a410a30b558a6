"""CNT009: no counter stands at its greatest value, where it no longer counts."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.pma import GREATEST
from kvdiag.derive.rdma import is_roce, joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import RdmaCounters, RdmaDevices

CODE = "CNT009"


def run(hosts: Hosts) -> Outcome:
    counters = hosts.local.part(RdmaCounters)
    if isinstance(counters, Missing):
        return NotObservable(counters.missing)
    looked_at = [
        (item, name, value) for item in counters.ports for name, value in item.counters.items() if name in GREATEST
    ]
    if not looked_at:
        return NotApplicable("no counter of a limited width")
    full = [(item, name, value) for item, name, value in looked_at if value == GREATEST[name]]
    hidden = [
        why
        for item in counters.ports
        for name, why in item.unreadable.items()
        if name.startswith("counters/") and name.removeprefix("counters/") in GREATEST
    ]
    if not full and hidden:
        return NotObservable(hidden[0])
    if not full:
        return Passed(f"{len(looked_at)} counters of limited width are below their greatest values")
    first = full[0][0]
    return Failed(
        (
            Finding(
                code=CODE,
                severity=Severity.INFO,
                subject=joined(dict.fromkeys(f"{item.device}/{item.port}" for item, _, _ in full)),
                summary=(
                    f"{len(full)} counter(s) stand at their greatest value and count no more: their rate reads zero, "
                    "whatever happens"
                ),
                evidence=tuple(
                    Evidence(
                        name=f"{item.device}/{item.port} {name}",
                        value=str(value),
                        source=f"/sys/class/infiniband/{item.device}/ports/{item.port}/counters/{name}",
                        threshold=f"below {GREATEST[name]}",
                    )
                    for item, name, value in full[:6]
                ),
                action=_action(hosts, first.device, first.port),
                host=hosts.local.host,
                devices=tuple(dict.fromkeys(item.device for item, _, _ in full)),
            ),
        )
    )


def _action(hosts: Hosts, device: str, number: int) -> str:
    devices = hosts.local.part(RdmaDevices)
    found = (
        None if isinstance(devices, Missing) else next((item for item in devices.devices if item.name == device), None)
    )
    port = None if found is None else next((item for item in found.ports if item.number == number), None)
    if found is not None and port is not None and is_roce(found, port):
        return (
            f"nothing resets it but loading the driver of {device} anew (perfquery needs InfiniBand): watch "
            "hw_counters and ethtool -S instead, which are wider"
        )
    return (
        f"perfquery -C {device} -P {number} -R as root sets the port's counters to zero, for every reader: do it in a "
        "quiet moment, and note it"
    )


CHECK = Check(code=CODE, title="no counter is saturated", run=run)
