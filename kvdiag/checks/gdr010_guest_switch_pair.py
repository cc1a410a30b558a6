"""GDR010: in a guest, no RDMA card is used for a GPU on the same PCI switch unless the host set that path up."""

from collections.abc import Iterable
from dataclasses import dataclass

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.device_lists import net_devices, selects
from kvdiag.derive.engines import transferring
from kvdiag.derive.gpu_distance import Distance
from kvdiag.derive.gpu_pairs import Pair, pairs
from kvdiag.derive.rdma import active_ports, joined
from kvdiag.derive.ucx_users import ucx_environments
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing, present
from kvdiag.model.platform import Platform
from kvdiag.model.rdma import RdmaDevices
from kvdiag.model.snapshot import Snapshot

CODE = "GDR010"
_UCX = "UCX_NET_DEVICES"
_SET_UP_BY_THE_CLOUD = ("Amazon EC2", "Google", "Microsoft Corporation", "OracleCloud.com")
"""Providers whose instance types with RDMA cards beside GPUs are offered for GPUDirect: they set translation up."""


def run(hosts: Hosts) -> Outcome:
    found = pairs(hosts.local)
    if not isinstance(found, Missing) and not found:
        return NotApplicable("no pair of a GPU and an ACTIVE port of an RDMA card")
    platform = hosts.local.part(Platform)
    if isinstance(platform, Missing):
        return NotObservable(platform.missing)
    if isinstance(platform.is_guest, Missing):
        return NotObservable(platform.is_guest.missing)
    if not platform.is_guest:
        return NotApplicable("not a guest: the CPU has no hypervisor flag")
    if platform.vendor in _SET_UP_BY_THE_CLOUD:
        return NotApplicable(f"{platform.vendor} sets peer-to-peer traffic up for its guests")
    users = _users(hosts.local)
    devices = hosts.local.part(RdmaDevices)
    if isinstance(found, Missing):
        return NotObservable(found.missing)
    switched = [pair for pair in found if pair.is_switched]
    if not switched:
        return Passed(f"none of {len(found)} pair(s) of GPU and RDMA card shares a PCI switch in this guest")
    if isinstance(users, Missing):
        return NotObservable(users.missing)
    assert isinstance(devices, RdmaDevices)
    findings = []
    for user in users:
        used = {port.device for port in active_ports(devices) if selects(user.devices, port)}
        affected = [pair for pair in switched if pair.device.name in used]
        if affected:
            findings.append(_finding(user, affected, found, hosts.local))
    if findings:
        return Failed(tuple(findings))
    return Passed("the cards that share a PCI switch with a GPU are left out of the device lists")


@dataclass(frozen=True, slots=True)
class _User:
    """Who moves KV blocks, and the device list that says over which cards (None: all)."""

    subject: str
    setting: str
    devices: str | None
    origin: str


def _users(snapshot: Snapshot) -> tuple[_User, ...] | Missing:
    named = ucx_environments(snapshot)
    if isinstance(named, Missing):
        return named
    found = [_User(item.subject, _UCX, item.variables.get(_UCX), item.origin) for item in named]
    for setup in present(transferring(snapshot)) or ():
        for connector in setup.connectors:
            if connector.library in ("mooncake", "mori"):
                devices = ",".join(connector.devices) or None
                found.append(_User(setup.process.name, "device list", devices, f"/proc/{setup.process.pid}/cmdline"))
    return tuple(found)


def _finding(user: _User, affected: list[Pair], found: tuple[Pair, ...], local: Snapshot) -> Finding:
    platform, devices = local.part(Platform), local.part(RdmaDevices)
    assert isinstance(platform, Platform)
    assert isinstance(devices, RdmaDevices)
    cards = dict.fromkeys(pair.device.name for pair in affected)
    return Finding(
        code=CODE,
        severity=Severity.CRITICAL,
        subject=user.subject,
        summary=(
            f"guest: {joined(cards)} may be used for the GPU on the same PCI switch; reads of GPU memory can then "
            "return garbage without an error"
        ),
        evidence=(
            Evidence(
                name="pairs on one switch",
                value=joined(f"{pair.device.name}–{pair.gpu.address} {_shown(pair.distance)}" for pair in affected),
                source="/sys/bus/pci/devices",
                threshold="NODE or SYS in a guest",
            ),
            Evidence(name="flag hypervisor", value=f"set ({platform.vendor})", source="/proc/cpuinfo"),
            Evidence(name=user.setting, value=user.devices or "not set: all cards", source=user.origin),
        ),
        action=_action(user.setting, found, devices),
        host=local.host,
        devices=tuple(cards),
    )


def _shown(distance: Distance | Missing) -> str:
    return distance.name if isinstance(distance, Distance) else "?"


def _action(setting: str, found: tuple[Pair, ...], devices: RdmaDevices) -> str:
    """Return the value that leaves out switched cards: one for all GPUs where there is one, else one for each GPU."""
    switched = {(pair.device.name, pair.gpu.address) for pair in found if pair.is_switched}
    names = dict.fromkeys(pair.device.name for pair in found)
    gpus = dict.fromkeys(pair.gpu.address for pair in found)
    ports = [port for port in active_ports(devices) if port.device in names]

    def value(without: Iterable[str]) -> str:
        left = [port for port in ports if not any((port.device, gpu) in switched for gpu in without)]
        if not left:
            return ""
        return f"{setting}={net_devices(left)}" if setting == _UCX else f"{setting} {','.join(p.device for p in left)}"

    verify = "; then compare the tokens of one request with those of a run without disaggregation"
    if value(gpus):
        return value(gpus) + verify
    return "; ".join(f"GPU {gpu}: {value((gpu,)) or 'no card is left'}" for gpu in gpus) + verify


CHECK = Check(code=CODE, title="in a guest, GPU and RDMA card share no PCI switch", run=run)
