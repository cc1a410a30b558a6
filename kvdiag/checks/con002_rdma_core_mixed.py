"""CON002: libibverbs, the providers beside it and the kernel fit together."""

import re

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.rdma import joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import RdmaDevices
from kvdiag.model.verbs import VerbsDevices

CODE = "CON002"
# Messages of rdma-core, libibverbs/init.c and the dynamic linker.
_PRIVATE = re.compile(
    r"couldn't load driver '?(?P<library>[^':\s]+)'?: .*version [`'](?P<version>IBVERBS_\w+)' not found"
)
_ABI = re.compile(
    r"[Dd]river (?P<driver>\w+) does not support the kernel ABI of (?P<abi>\d+) "
    r"\(supports (?P<least>\d+) to (?P<most>\d+)\)"
)


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    if not devices.devices:
        return NotApplicable("no RDMA device on this host")
    verbs = hosts.local.part(VerbsDevices)
    if isinstance(verbs, Missing):
        return NotObservable(verbs.missing)
    listed = {device.name for device in verbs.devices}
    lacking = [device.name for device in devices.devices if device.name not in listed]
    findings = tuple(
        finding for line in verbs.warnings if (finding := _judge(line, lacking, verbs.origin, hosts.local.host))
    )
    if findings:
        return Failed(findings)
    return Passed(f"libibverbs lists {len(verbs.devices)} device(s) and says nothing of versions that do not fit")


def _judge(line: str, lacking: list[str], origin: str, host: str) -> Finding | None:
    private = _PRIVATE.search(line)
    abi = _ABI.search(line)
    if private is not None:
        subject = private["library"]
        summary = (
            f"{subject} was built for another libibverbs: it wants {private['version']}, which the one that is "
            "loaded does not have"
        )
        action = (
            "install libibverbs and its provider from one rdma-core release in the image (apt-get install --reinstall "
            "libibverbs1 ibverbs-providers), and mount neither of them alone from the host"
        )
    elif abi is not None:
        subject = abi["driver"]
        summary = (
            f"provider {subject} speaks kernel ABI {abi['least']} to {abi['most']}, but the kernel's driver has "
            f"{abi['abi']}"
        )
        newer = int(abi["abi"]) > int(abi["most"])
        action = (
            f"install the {subject} provider of the driver's own release "
            f"({'a newer rdma-core' if newer else 'an older rdma-core'} than this image's), or the kernel driver "
            "that belongs to this rdma-core"
        )
    else:
        return None
    return Finding(
        code=CODE,
        # A provider that nothing here needs may be as it is.
        severity=Severity.CRITICAL if lacking else Severity.INFO,
        subject=subject,
        summary=summary,
        evidence=(
            Evidence(name="libibverbs says", value=line, source=origin),
            Evidence(
                name="devices that libibverbs does not list",
                value=joined(lacking) or "none",
                source=origin,
                threshold="none",
            ),
        ),
        action=action,
        host=host,
        devices=tuple(lacking),
    )


CHECK = Check(code=CODE, title="libibverbs, providers and kernel fit together", run=run, explains=("CON001", "TRN001"))
