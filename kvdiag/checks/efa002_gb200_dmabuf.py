"""EFA002: libfabric's EFA provider can register the memory of this host's NVIDIA GPUs."""

import re

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.gpu import NvidiaGpus
from kvdiag.model.libfabric import LibfabricDomains
from kvdiag.model.missing import Missing, present
from kvdiag.model.platform import Platform
from kvdiag.model.rdma import RdmaDevices
from kvdiag.model.snapshot import Snapshot

CODE = "EFA002"
_NEWEST_REPORTED = 204
"""libfabric 2.4 calls its EFA provider 204.x; it took no dma-buf path for CUDA memory that is registered by address."""


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    cards = tuple(device.name for device in devices.devices if device.driver == "efa")
    if not cards:
        return NotApplicable("no EFA card")
    grace = _grace_blackwell(hosts.local)
    if isinstance(grace, Missing):
        return NotObservable(grace.missing)
    if grace is None:
        return NotApplicable("the reports are of Grace Blackwell hosts, which this is not")
    domains = hosts.local.part(LibfabricDomains)
    if isinstance(domains, Missing):
        return NotObservable(domains.missing)
    versions = [item.version for item in domains.domains if item.provider.partition(";")[0] == "efa"]
    if not versions:
        return NotApplicable("libfabric offers no EFA provider here")
    match = re.match(r"(\d{1,6})\.", versions[0])
    if match is None:
        return NotObservable(f"{domains.origin} names the EFA provider's version {versions[0]!r}")
    if int(match[1]) > _NEWEST_REPORTED:
        return Passed(f"EFA provider {versions[0]} is newer than those in the reports")
    finding = Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=f"EFA provider {versions[0]}",
        summary=(
            f"EFA provider {versions[0]} on {grace[0]}: consistent with CUDA memory that cannot be registered "
            "(Bad address), though dma-buf is supported"
        ),
        evidence=(
            Evidence(
                name="EFA provider",
                value=versions[0],
                source=domains.origin,
                threshold=f"above {_NEWEST_REPORTED}, or with the dma-buf path for CUDA",
            ),
            Evidence(name="platform", value=grace[0], source=grace[1]),
        ),
        action=(
            "before serving: register one GPU buffer (fi_rma_bw -p efa -D cuda on a peer, then here "
            "fi_rma_bw -p efa -D cuda PEER); if it fails with Bad address, use a "
            "libfabric with the dma-buf path for CUDA in its EFA provider"
        ),
        host=hosts.local.host,
        devices=cards,
    )
    return Failed((finding,))


def _grace_blackwell(local: Snapshot) -> tuple[str, str] | Missing | None:
    """Return the GPU's or the product's name and where it was read, None where it is another platform."""
    gpus = local.part(NvidiaGpus)
    for gpu in () if isinstance(gpus, Missing) else gpus.gpus:
        name = present(gpu.name) or ""
        if re.search(r"\bGB[23]00\b", name):
            return name, gpus.origin if isinstance(gpus, NvidiaGpus) else ""
    platform = local.part(Platform)
    product = platform if isinstance(platform, Missing) else platform.product
    if isinstance(product, str):
        return (product, "/sys/class/dmi/id/product_name") if re.search(r"gb[23]00", product) else None
    return product if isinstance(gpus, Missing) else None


CHECK = Check(code=CODE, title="EFA's provider registers CUDA memory", run=run)
