"""GDR013: RDMA cards on the same PCI switch as a GPU may use relaxed ordering."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.environments import NamedEnvironment, environments
from kvdiag.derive.gpu_pairs import none_switched, pairs
from kvdiag.derive.rdma import joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing, present
from kvdiag.model.pci_link import PciLinks
from kvdiag.model.platform import Platform
from kvdiag.model.snapshot import Snapshot

CODE = "GDR013"
_OFF = {
    "UCX_IB_PCI_RELAXED_ORDERING": ("n", "no", "off", "0"),
    "NCCL_IB_PCI_RELAXED_ORDERING": ("0",),
}


def run(hosts: Hosts) -> Outcome:
    found = pairs(hosts.local)
    if isinstance(found, Missing):
        return NotObservable(found.missing)
    cards = dict.fromkeys((pair.device.name, pair.nic.address) for pair in found if pair.is_switched)
    if not cards:
        return NotApplicable(none_switched(found))
    named = environments(hosts.local)
    findings = _switched_off(() if isinstance(named, Missing) else named, tuple(name for name, _ in cards), hosts.local)
    links = hosts.local.part(PciLinks)
    settings: dict[str, bool | Missing] = {}
    for name, address in cards:
        link = links if isinstance(links, Missing) else links.at(address)
        if link is not None:
            settings[name] = link if isinstance(link, Missing) else link.relaxed_ordering
    refused = [name for name, value in settings.items() if value is False]
    if refused:
        origin = links.settings_origin if isinstance(links, PciLinks) else ""
        findings.append(_refused(refused, origin, hosts.local.host))
    if findings:
        return Failed(tuple(findings))
    if isinstance(named, Missing):
        return NotObservable(named.missing)
    hidden = [value for value in settings.values() if isinstance(value, Missing)]
    if hidden:
        return NotObservable(hidden[0].missing)
    return Passed(f"relaxed ordering is enabled on {joined(settings)}")


def _switched_off(named: tuple[NamedEnvironment, ...], cards: tuple[str, ...], local: Snapshot) -> list[Finding]:
    set_off = [
        (environment, name, value)
        for environment in named
        for name, off in _OFF.items()
        if (value := environment.variables.get(name)) is not None and value.strip().lower() in off
    ]
    platform = present(local.part(Platform))
    processor = "unknown" if platform is None else present(platform.cpu_model) or "unknown"
    return [
        Finding(
            code=CODE,
            severity=Severity.WARNING,
            subject=environment.subject,
            summary=(
                f"{name}={value}: GPU memory is registered without relaxed ordering, consistent with less than half "
                "of the card's rate on some processors"
            ),
            evidence=(
                Evidence(name=name, value=value, source=environment.origin, threshold="not set, or on"),
                Evidence(name="processor", value=processor, source="/proc/cpuinfo"),
            ),
            action=f"measure without {name} (and with {name}=1), and keep the faster",
            host=local.host,
            devices=cards,
        )
        for environment, name, value in set_off
    ]


def _refused(names: list[str], origin: str, host: str) -> Finding:
    return Finding(
        code=CODE,
        severity=Severity.INFO,
        subject=joined(names),
        summary=f"relaxed ordering is switched off in the PCI settings of {joined(names)}: registrations cannot use it",
        evidence=(Evidence(name="DevCtl", value="RlxdOrd-", source=origin, threshold="RlxdOrd+"),),
        action="measure ib_write_bw with and without --use_cuda=0; if they differ, enable it in the firmware",
        host=host,
        devices=tuple(names),
    )


CHECK = Check(code=CODE, title="RDMA cards beside GPUs may use relaxed ordering", run=run)
