"""REG005: the access that MoRI asks for when it registers memory is one that the card offers."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.engines import transferring
from kvdiag.derive.rdma import SOFTWARE_DRIVERS, active_ports, device_of, joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import RdmaDevices
from kvdiag.model.verbs import VerbsDevices

CODE = "REG005"
_SWITCH = "MORI_IO_DISABLE_ATOMIC_MR"


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    found = transferring(hosts.local, "mori")
    verbs = hosts.local.part(VerbsDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    if isinstance(found, Missing):
        return NotObservable(found.missing)
    if not found:
        return NotApplicable("no engine here moves KV blocks with MoRI")
    cards = {p.device for p in active_ports(devices) if device_of(devices, p).driver not in SOFTWARE_DRIVERS}
    if not cards:
        return NotApplicable("no ACTIVE port of an RDMA card")
    hidden = [setup.variables for setup in found if isinstance(setup.variables, Missing)]
    if hidden:
        return NotObservable(hidden[0].missing)
    asking = [setup for setup in found if setup.variable(_SWITCH) != "1"]
    if not asking:
        return Passed(f"{_SWITCH}=1: no atomic access is asked for")
    if isinstance(verbs, Missing):
        return NotObservable(verbs.missing)
    known = {device.name: device.texts.get("atomic_cap") for device in verbs.devices if device.name in cards}
    without = tuple(sorted(name for name, text in known.items() if text == "ATOMIC_NONE"))
    if without:
        return Failed(
            tuple(
                Finding(
                    code=CODE,
                    severity=Severity.CRITICAL,
                    subject=setup.process.name,
                    summary=f"MoRI asks for atomic access, which {joined(without)} lack: registration fails (errno 22)",
                    evidence=(
                        Evidence(name="atomic_cap", value="ATOMIC_NONE", source=verbs.origin, threshold="ATOMIC_HCA"),
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
    if None in known.values() or len(known) < len(cards):
        return NotObservable(f"{verbs.origin} shows no atomic_cap of {joined(sorted(cards))}")
    return Passed(f"{joined(sorted(known))} offer atomic access")


CHECK = Check(code=CODE, title="cards offer the access that MoRI registers with", run=run)
