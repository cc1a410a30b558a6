"""VND003: an engine that uses atomics on GPU memory has cards that complete them."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.engines import transferring
from kvdiag.derive.rdma import active_ports, device_of, joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.pci_link import PciLinks
from kvdiag.model.rdma import RdmaDevices

CODE = "VND003"
_SWITCH = "MORI_IO_DISABLE_ATOMIC_MR"


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    links = hosts.local.part(PciLinks)
    found = transferring(hosts.local, "mori")
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    cards = {
        device.name: device.pci_address
        for port in active_ports(devices)
        if (device := device_of(devices, port)).driver == "bnxt_en"
    }
    if not cards:
        return NotApplicable("no ACTIVE port of a Broadcom card (bnxt_en)")
    if isinstance(found, Missing):
        return NotObservable(found.missing)
    if not found:
        return NotApplicable("no engine here moves KV blocks with MoRI, the one that was reported to use atomics")
    hidden = [setup.variables for setup in found if isinstance(setup.variables, Missing)]
    if hidden:
        return NotObservable(hidden[0].missing)
    asking = [setup for setup in found if setup.variable(_SWITCH) != "1"]
    if not asking:
        return Passed(f"{_SWITCH}=1: atomics are not used")
    if isinstance(links, Missing):
        return NotObservable(links.missing)
    known = {name: link.atomic_completer_bits for name, at in cards.items() if (link := links.at(at)) is not None}
    without = tuple(sorted(name for name, bits in known.items() if bits == ()))
    if without:
        return Failed(
            tuple(
                Finding(
                    code=CODE,
                    severity=Severity.WARNING,
                    subject=setup.process.name,
                    summary=(
                        f"{joined(without)} complete no PCI atomics: consistent with GPU-memory atomics that never end"
                    ),
                    evidence=(
                        Evidence(
                            name="AtomicOpsCap",
                            value="32bit- 64bit-",
                            source=links.settings_origin,
                            threshold="64bit+",
                        ),
                        Evidence(
                            name=_SWITCH,
                            value=str(setup.variable(_SWITCH) or "not set"),
                            source=f"/proc/{setup.process.pid}/environ",
                            threshold="1",
                        ),
                    ),
                    action=f"start it with {_SWITCH}=1",
                    host=hosts.local.host,
                    devices=without,
                )
                for setup in asking
            )
        )
    unknown = [bits for bits in known.values() if isinstance(bits, Missing)]
    if unknown:
        return NotObservable(unknown[0].missing)
    return Passed(f"{joined(sorted(known))} complete PCI atomics")


CHECK = Check(code=CODE, title="Broadcom cards complete the atomics that are used", run=run)
