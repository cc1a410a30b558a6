"""TRN013: the RDMA devices that an engine is told to use exist and are ACTIVE."""

from dataclasses import dataclass, replace

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.device_lists import device_list, net_devices, selects
from kvdiag.derive.engines import setups
from kvdiag.derive.environments import environments
from kvdiag.derive.fabric import fabric_ports
from kvdiag.derive.rdma import active_ports, joined
from kvdiag.derive.setting import set_variable
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.interfaces import NetInterfaces
from kvdiag.model.missing import Missing, present
from kvdiag.model.rdma import RdmaDevices
from kvdiag.model.snapshot import Snapshot

CODE = "TRN013"
_VARIABLES = ("MOONCAKE_DEVICE", "MORI_RDMA_DEVICES", "UCX_NET_DEVICES")
_FLAGS = ("--disaggregation-ib-device", "--device-name")
"""Of SGLang and of mooncake_client (written with `_` too)."""


@dataclass(frozen=True, slots=True)
class _List:
    name: str
    value: str
    origin: str
    entries: tuple[str, ...]
    is_mooncake: bool = False
    group: str = ""


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    lists = _lists(hosts.local)
    if isinstance(lists, Missing):
        return NotObservable(lists.missing)
    if not lists:
        return NotApplicable("no list names RDMA devices")
    if not devices.devices:
        return NotApplicable("no RDMA device on this host at all (TRN002)")
    findings = tuple(finding for item in lists if (finding := _judge(item, devices, hosts.local)) is not None)
    if findings:
        return Failed(findings)
    return Passed(joined(f"{item.name}={item.value}: all ACTIVE" for item in lists))


def _lists(snapshot: Snapshot) -> tuple[_List, ...] | Missing:
    """Return the lists of devices of the engines, or of kvdiag's own environment before one runs."""
    found = environments(snapshot)
    if isinstance(found, Missing):
        return found
    lists = []
    for named in found:
        for name in _VARIABLES:
            value = named.variables.get(name, "").strip()
            if value not in ("", "all") and not value.startswith("^"):
                lists.append(
                    _List(name, value, named.origin, device_list(value), name == "MOONCAKE_DEVICE", named.group)
                )
    for engine in present(setups(snapshot)) or ():
        for connector in engine.connectors:
            # SGLang also takes a JSON map or a file of one here.
            if connector.devices and not any(letter in "".join(connector.devices) for letter in '{}/"'):
                origin = f"/proc/{engine.process.pid}/cmdline"
                value = ",".join(connector.devices)
                flag = next(flag for flag in _FLAGS if engine.option(flag) is not None)
                lists.append(_List(flag, value, origin, connector.devices, connector.library == "mooncake"))
    interfaces = present(snapshot.part(NetInterfaces))
    known = {item.name for item in interfaces.devices} if interfaces else set()
    return tuple(
        replace(item, entries=entries)
        for item in dict.fromkeys(lists)
        if (entries := tuple(entry for entry in item.entries if entry not in known))
    )


def _judge(item: _List, devices: RdmaDevices, snapshot: Snapshot) -> Finding | None:
    active = active_ports(devices)
    dead = [entry for entry in item.entries if not any(selects(entry, port) for port in active)]
    if not dead:
        return None
    every = len(dead) == len(item.entries)
    names = [device.name for device in devices.devices]
    fabric = fabric_ports(snapshot)
    better = ",".join(dict.fromkeys(port.device for port in fabric))
    if item.name == "UCX_NET_DEVICES":
        better = net_devices(fabric)
    return Finding(
        code=CODE,
        severity=Severity.CRITICAL if every else Severity.WARNING,
        subject=item.name,
        summary=(
            f"{item.name} names {joined(dead)}, but no ACTIVE RDMA port here has that name"
            + ("; no entry is left: transfers go over TCP or fail" if every else "")
        ),
        evidence=(
            Evidence(name=item.name, value=item.value, source=item.origin, threshold=better or None),
            Evidence(name="RDMA devices", value=joined(names, 16), source="/sys/class/infiniband"),
            Evidence(
                name="ACTIVE ports",
                value=joined((port.name for port in active), 16) or "none",
                source="/sys/class/infiniband/*/ports/*/state",
            ),
        ),
        action=(
            (
                set_variable(item.group, item.name, better)
                if item.name in _VARIABLES
                else f"start it with {item.name} {better}"
            )
            if better
            else "bring a port up (kvdiag explain FAB002)"
        )
        + ("; MC_FORCE_HCA=1 makes Mooncake fail instead of using TCP" if item.is_mooncake else ""),
        host=snapshot.host,
        devices=tuple(entry.partition(":")[0] for entry in dead if entry.partition(":")[0] in names),
    )


CHECK = Check(code=CODE, title="listed RDMA devices exist and are ACTIVE", run=run, explained_by=("FAB002", "TRN002"))
