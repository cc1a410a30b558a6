"""VND002: the Broadcom driver is none of those that were reported to fail."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.rdma import joined
from kvdiag.model.driver_versions import DriverVersions
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import RdmaDevices

CODE = "VND002"
_FAILING = ("237", "238")
_WORKING = "235"
"""A report has completion queues fail with EIO on 237 and 238 and work on 235, on one host."""


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    versions = hosts.local.part(DriverVersions)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    cards = tuple(device.name for device in devices.devices if device.driver == "bnxt_en")
    if not cards:
        return NotApplicable("no Broadcom card (bnxt_en)")
    if isinstance(versions, Missing):
        return NotObservable(versions.missing)
    version = versions.of("bnxt_re")
    if isinstance(version, Missing):
        return NotObservable(version.missing)
    if version.partition(".")[0] not in _FAILING:
        return Passed(f"bnxt_re {version}")
    finding = Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=joined(cards),
        summary=f"bnxt_re {version}: consistent with completion queues that cannot be created (Input/output error)",
        evidence=(
            Evidence(
                name="bnxt_re",
                value=version,
                source="/sys/module/bnxt_re/version",
                threshold=f"not {' or '.join(_FAILING)}",
            ),
        ),
        action=f"try ib_write_bw -d {cards[0]} to a peer first; if it fails, install the driver's release {_WORKING}",
        host=hosts.local.host,
        devices=cards,
    )
    return Failed((finding,))


CHECK = Check(code=CODE, title="the Broadcom driver is none reported to fail", run=run)
