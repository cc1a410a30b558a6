"""VND001: rdma-core is new enough for Broadcom cards."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.rdma import active_ports, device_of, joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import RdmaDevices
from kvdiag.model.verbs import VerbsProviders

CODE = "VND001"
_FIXED = 63
"""33 to 66 of 512 queue pairs could be made from threads with rdma-core 39 and 50, all 512 with 63."""


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    providers = hosts.local.part(VerbsProviders)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    ports = active_ports(devices)
    cards = tuple(dict.fromkeys(port.device for port in ports if device_of(devices, port).driver == "bnxt_en"))
    if not cards:
        return NotApplicable("no ACTIVE port of a Broadcom card (bnxt_en)")
    if isinstance(providers, Missing):
        return NotObservable(providers.missing)
    release = providers.rdma_core
    if isinstance(release, Missing):
        return NotObservable(release.missing)
    if release >= _FIXED:
        return Passed(f"rdma-core {release}")
    finding = Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=joined(cards),
        summary=f"rdma-core {release} with Broadcom cards: queue pairs made from worker threads fail (Bad address)",
        evidence=(
            Evidence(
                name="libibverbs",
                value=str(providers.libibverbs),
                source=f"{providers.root.rstrip('/')}/usr/lib/**/libibverbs.so.1",
                threshold=f"rdma-core {_FIXED} or newer",
            ),
            Evidence(name="cards", value=joined(cards), source="/sys/class/infiniband/*/device/driver"),
        ),
        action=(
            f"install rdma-core {_FIXED} or newer (libibverbs1, ibverbs-providers, librdmacm1) in the engine's image, "
            "or Broadcom's own build of libbnxt_re of that age"
        ),
        host=hosts.local.host,
        devices=cards,
    )
    return Failed((finding,))


CHECK = Check(code=CODE, title="rdma-core is new enough for Broadcom cards", run=run)
