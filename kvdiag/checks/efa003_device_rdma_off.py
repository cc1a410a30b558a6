"""EFA003: the EFA provider may use the card's RDMA reads and writes."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.environments import environments
from kvdiag.derive.rdma import joined
from kvdiag.derive.setting import unset_variable
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import RdmaDevices

CODE = "EFA003"
_SWITCH = "FI_EFA_USE_DEVICE_RDMA"
_OFF = ("0", "no", "off", "false", "n")


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    cards = tuple(device.name for device in devices.devices if device.driver == "efa")
    if not cards:
        return NotApplicable("no EFA card")
    named = environments(hosts.local)
    if isinstance(named, Missing):
        return NotObservable(named.missing)
    off = [item for item in named if item.variables.get(_SWITCH, "").strip().lower() in _OFF]
    if not off:
        return Passed(f"{_SWITCH} is not switched off: {joined(item.subject for item in named)}")
    return Failed(
        tuple(
            Finding(
                code=CODE,
                severity=Severity.WARNING,
                subject=item.subject,
                summary=f"{_SWITCH}={item.variables[_SWITCH]}: reads and writes are emulated by messages and copies",
                evidence=(
                    Evidence(
                        name=_SWITCH, value=item.variables[_SWITCH], source=item.origin, threshold="not set, or 1"
                    ),
                    Evidence(name="EFA cards", value=joined(cards), source="/sys/class/infiniband"),
                ),
                action=f"{unset_variable(item.group, _SWITCH)} (the provider then uses what the card offers)",
                host=hosts.local.host,
                devices=cards,
            )
            for item in off
        )
    )


CHECK = Check(code=CODE, title="EFA's RDMA is switched on", run=run)
