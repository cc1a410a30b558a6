"""GDR012: on bare metal, no PCI bridge between a GPU and its RDMA card redirects their traffic upstream."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.gpu_pairs import below_shared, none_switched, pairs
from kvdiag.derive.rdma import joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.pci_link import PciLink, PciLinks
from kvdiag.model.platform import Platform

CODE = "GDR012"
_HARMFUL = ("SrcValid", "ReqRedir")
"""ReqRedir sends peer-to-peer requests to the root port; SrcValid is what NCCL's guide looks for as its sign."""


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
        return NotApplicable("a guest: passed-through functions need access control to be kept apart")
    bridges = dict.fromkeys(address for pair in switched for address in below_shared(pair))
    known = [link for address in bridges if (link := links.at(address)) is not None]
    redirecting = [link for link in known if not isinstance(link.acs, Missing) and set(link.acs) & set(_HARMFUL)]
    if redirecting:
        cards = dict.fromkeys(
            pair.device.name for pair in switched if {link.address for link in redirecting} & set(below_shared(pair))
        )
        return Failed((_finding(redirecting, tuple(cards), links.settings_origin, hosts.local.host),))
    hidden = [link.acs for link in known if isinstance(link.acs, Missing)]
    if hidden:
        return NotObservable(hidden[0].missing)
    if not known:
        return NotApplicable("no bridge stands between the GPUs and the RDMA cards that share a switch with them")
    return Passed(f"{len(known)} bridge(s) between GPUs and RDMA cards redirect nothing")


def _finding(redirecting: list[PciLink], cards: tuple[str, ...], origin: str, host: str) -> Finding:
    first = redirecting[0]
    assert not isinstance(first.acs, Missing)
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=joined(cards),
        summary=(
            f"access control on {len(redirecting)} PCI bridge(s) sends traffic between GPU and {joined(cards)} through "
            "the root port: consistent with GPU bandwidth far below that of host memory"
        ),
        evidence=(
            Evidence(
                name=f"ACSCtl of {first.address}",
                value=" ".join(f"{name}+" for name in first.acs),
                source=origin,
                threshold=" ".join(f"{name}-" for name in _HARMFUL),
            ),
            Evidence(
                name="bridges",
                value=joined((link.address for link in redirecting), most=16),
                source="/sys/bus/pci/devices",
            ),
        ),
        # ECAP_ACS+6 is the ACS control register (setpci(8)).
        action="; ".join(f"setpci -s {link.address} ECAP_ACS+6.w=0000" for link in redirecting[:16])
        + " (until the next boot; not where guests share these devices)",
        host=host,
        devices=cards,
    )


CHECK = Check(code=CODE, title="no PCI bridge redirects traffic between GPU and RDMA card", run=run)
