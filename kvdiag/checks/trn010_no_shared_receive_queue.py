"""TRN010: the cards that UCX is to use have shared receive queues."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.device_lists import selects
from kvdiag.derive.fabric import hardware_ports
from kvdiag.derive.rdma import device_of, joined
from kvdiag.derive.ucx_users import ucx_environments
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import RdmaDevices
from kvdiag.model.verbs import VerbsDevices

CODE = "TRN010"


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    found = ucx_environments(hosts.local)
    if isinstance(found, Missing):
        return NotObservable(found.missing)
    names = dict.fromkeys(
        port.device
        for port in hardware_ports(devices)
        if device_of(devices, port).driver != "efa"
        and any(selects(named.variables.get("UCX_NET_DEVICES"), port) for named in found)
    )
    if not names:
        return NotApplicable("no ACTIVE port that UCX would use")
    verbs = hosts.local.part(VerbsDevices)
    if isinstance(verbs, Missing):
        return NotObservable(verbs.missing)
    limits = {name: verbs.limit(name, "max_srq") for name in names}
    without = [name for name, limit in limits.items() if limit == 0]
    if without:
        return Failed((_finding(without, verbs.origin, hosts.local.host),))
    hidden = [limit for limit in limits.values() if isinstance(limit, Missing)]
    if hidden:
        return NotObservable(hidden[0].missing)
    return Passed(joined(f"{name}: max_srq {limit}" for name, limit in limits.items()))


def _finding(without: list[str], origin: str, host: str) -> Finding:
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=joined(without),
        summary=f"{joined(without)} has no shared receive queue (max_srq 0), which UCX's rc_verbs needs",
        evidence=tuple(
            Evidence(name=f"max_srq of {name}", value="0", source=f"{origin} (ibv_devinfo -v)", threshold="1 or more")
            for name in without
        ),
        action=(
            "use a connector that needs no SRQ on this card (MoRI, Mooncake, NIXL's libfabric backend), or a UCX whose "
            "release notes name this card"
        ),
        host=host,
        devices=tuple(without),
    )


CHECK = Check(code=CODE, title="cards have the shared receive queues that UCX needs", run=run, explains=("TRN001",))
