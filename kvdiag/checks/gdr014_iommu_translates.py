"""GDR014: on bare metal, the IOMMU does not translate between a GPU and its RDMA card."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.gpu_pairs import none_switched, pairs
from kvdiag.derive.rdma import joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.pci_link import PciLinks
from kvdiag.model.platform import Platform

CODE = "GDR014"


def run(hosts: Hosts) -> Outcome:
    found = pairs(hosts.local)
    links = hosts.local.part(PciLinks)
    platform = hosts.local.part(Platform)
    if isinstance(found, Missing):
        return NotObservable(found.missing)
    switched = [pair for pair in found if pair.is_switched]
    if not switched:
        return NotApplicable(none_switched(found))
    if isinstance(links, Missing):
        return NotObservable(links.missing)
    if isinstance(platform, Missing):
        return NotObservable(platform.missing)
    if platform.is_guest is True:
        return NotApplicable("a guest: its IOMMU is not the one that translates for passed-through functions")
    cards = dict.fromkeys((pair.device.name, pair.nic.address) for pair in switched)
    known = [(name, link) for name, address in cards if (link := links.at(address)) is not None]
    translated = [(name, link) for name, link in known if isinstance(link.iommu_type, str) and "DMA" in link.iommu_type]
    if not translated:
        grouped = [link for _, link in known if not isinstance(link.iommu_group, Missing)]
        hidden = [link.iommu_type for link in grouped if isinstance(link.iommu_type, Missing)]
        if hidden:
            return NotObservable(hidden[0].missing)
        strange = [link for link in grouped if link.iommu_type not in ("identity", "blocked")]
        if strange:
            return NotObservable(
                f"the IOMMU group of {strange[0].address} is of type {str(strange[0].iommu_type)[:20]!r}"
            )
        return Passed(f"{len(known)} RDMA card(s) beside GPUs: {'identity mapping' if grouped else 'no IOMMU group'}")
    names = tuple(name for name, _ in translated)
    first = translated[0][1]
    finding = Finding(
        code=CODE,
        severity=Severity.INFO,
        subject=joined(names),
        summary=f"the IOMMU translates addresses of {joined(names)}: traffic to the GPU may pass the root port",
        evidence=(
            Evidence(
                name="IOMMU group type",
                value=str(first.iommu_type),
                source=f"/sys/bus/pci/devices/{first.address}/iommu_group/type",
                threshold="identity",
            ),
        ),
        action="if GPU memory is slower than host memory: boot with iommu=pt (kernel command line) and measure again",
        host=hosts.local.host,
        devices=names,
    )
    return Failed((finding,))


CHECK = Check(code=CODE, title="no IOMMU translates between GPU and RDMA card", run=run)
