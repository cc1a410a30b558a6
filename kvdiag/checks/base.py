"""What a check is, what it may answer, and how all of them are found and run."""

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import kvdiag.checks
from kvdiag.model.finding import Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import Port, RdmaDevices
from kvdiag.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """What a check judges: this host, and the peers that were asked for their snapshot."""

    local: Snapshot
    peers: tuple[Snapshot, ...] = ()


@dataclass(frozen=True, slots=True)
class Passed:
    """Nothing wrong; `examined` says in one line what was looked at, with the number that shows it."""

    examined: str


@dataclass(frozen=True, slots=True)
class Failed:
    """One or more findings of this check."""

    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """There is nothing here that this check judges, and why (no GPU, no peer named, ...)."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotObservable:
    """There may be something to judge, but the evidence cannot be seen from here, and why."""

    reason: str


Outcome = Passed | Failed | NotApplicable | NotObservable


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """`code` is stable and starts the file's name in lower case; `title` says in a few words what must hold.

    A finding of this check is shown below one of a check in `explained_by`, and those of a check in `explains` below
    one of this check, where both concern the same host and device. Either file may say so; codes need not exist yet.
    """

    code: str
    title: str
    run: Callable[[Hosts], Outcome]
    explains: tuple[str, ...] = ()
    explained_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Judged:
    """A check and what it answered."""

    check: Check
    outcome: Outcome


def discover() -> tuple[Check, ...]:
    """Return the CHECK object of every module in this folder that has one, sorted by code."""
    found = []
    for module_info in pkgutil.iter_modules(kvdiag.checks.__path__):
        module = importlib.import_module(f"kvdiag.checks.{module_info.name}")
        check = getattr(module, "CHECK", None)
        if isinstance(check, Check):
            found.append(check)
    return tuple(sorted(found, key=lambda check: check.code))


def run(hosts: Hosts, checks: Iterable[Check] | None = None) -> tuple[Judged, ...]:
    """Run every check (default: all that `discover` finds) on the hosts, in the order of their codes.

    A check that raises hides no other: that it could not be run becomes its finding.
    """
    return tuple(Judged(check, _run(check, hosts)) for check in (discover() if checks is None else checks))


def judge(check: Check, hosts: Hosts) -> Outcome:
    """Return what a check answers whatever the state of the ports is that hide theirs; raises what the check raises.

    Checks take such a port for ACTIVE. What they find on it alone, and what they would not say if it were DOWN, is no
    finding and no pass.
    """
    outcome = check.run(hosts)
    if isinstance(outcome, NotApplicable):
        return _without_dangling(check, hosts, outcome)
    hidden = [port for snapshot in (hosts.local, *hosts.peers) for port in _hidden(snapshot)]
    if not hidden or isinstance(outcome, NotObservable):
        return outcome
    down = check.run(Hosts(local=_down(hosts.local), peers=tuple(map(_down, hosts.peers))))
    why = next(port.state.missing for port in hidden if isinstance(port.state, Missing))
    if isinstance(outcome, Passed):
        return NotObservable(why) if isinstance(down, Failed) else outcome
    names = {port.device for port in hidden}
    sure = tuple(finding for finding in outcome.findings if not finding.devices or set(finding.devices) - names)
    return Failed(sure) if sure and isinstance(down, Failed) else NotObservable(why)


def _without_dangling(check: Check, hosts: Hosts, outcome: NotApplicable) -> Outcome:
    """Return what a check answers that found nothing to judge, where RDMA devices are listed that lead nowhere.

    Of such a device neither ports nor driver are seen (CNT001): a check that needs them cannot say that there are none.
    """
    devices = hosts.local.part(RdmaDevices)
    found = () if isinstance(devices, Missing) else devices.devices
    dangling = [device.name for device in found if isinstance(device.sysfs_path, Missing)]
    if not dangling:
        return outcome
    names = ", ".join(dangling[:4]) + (" ..." if len(dangling) > 4 else "")
    why = Missing(f"{names} in /sys/class/infiniband lead nowhere: nothing of them is seen (CNT001)")
    parts = {**hosts.local.parts, RdmaDevices: why}
    answer = check.run(replace(hosts, local=replace(hosts.local, parts=parts)))
    return answer if isinstance(answer, NotObservable) else outcome


def _hidden(snapshot: Snapshot) -> tuple[Port, ...]:
    devices = snapshot.part(RdmaDevices)
    ports = () if isinstance(devices, Missing) else devices.ports
    return tuple(port for port in ports if isinstance(port.state, Missing))


def _down(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with the ports DOWN that hide their state."""
    devices = snapshot.part(RdmaDevices)
    if isinstance(devices, Missing) or not _hidden(snapshot):
        return snapshot
    changed = tuple(
        replace(
            device,
            ports=tuple(
                replace(port, state="DOWN") if isinstance(port.state, Missing) else port for port in device.ports
            ),
        )
        for device in devices.devices
    )
    return replace(snapshot, parts={**snapshot.parts, RdmaDevices: replace(devices, devices=changed)})


def _run(check: Check, hosts: Hosts) -> Outcome:
    try:
        return judge(check, hosts)
    except Exception as error:
        finding = Finding(
            code=check.code,
            severity=Severity.WARNING,
            subject="kvdiag",
            summary=f"this check could not be run: {type(error).__name__}: {' '.join(str(error).split())[:200]}",
            evidence=(),
            action="this is a defect in kvdiag: report it with the output of --format json",
            host=hosts.local.host,
        )
        return Failed((finding,))
