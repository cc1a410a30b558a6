"""VND004: cards of one make run one firmware."""

import re
from collections import defaultdict

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.rdma import SOFTWARE_DRIVERS, half_known, joined, model
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import RdmaDevices

CODE = "VND004"
_VERSION = re.compile(r"\d+(\.[\w-]+){1,5}")
_BOARD = re.compile(r"\w{2,40}")
Make = tuple[str, ...]


def run(hosts: Hosts) -> Outcome:
    local = hosts.local.part(RdmaDevices)
    if isinstance(local, Missing):
        return NotObservable(local.missing)
    makes: dict[Make, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    counted: dict[Make, int] = defaultdict(int)
    hidden = []
    for snapshot in (hosts.local, *hosts.peers):
        devices = snapshot.part(RdmaDevices)
        for device in () if isinstance(devices, Missing) else devices.devices:
            if device.driver in SOFTWARE_DRIVERS:
                continue
            if isinstance(device.fw_ver, Missing):
                hidden.append(device.fw_ver.missing)
            elif not _VERSION.fullmatch(device.fw_ver):
                hidden.append(f"fw_ver of {device.name} holds {device.fw_ver[:40]!r}, not a version")
            elif isinstance(device.board_id, str) and _BOARD.fullmatch(device.board_id):
                # Without a board id, one driver may serve several makes.
                make = model(device)
                counted[make] += 1
                name = device.name if snapshot is hosts.local else f"{snapshot.host}:{device.name}"
                makes[make][device.fw_ver].append(name)
    several = {make: versions for make, versions in makes.items() if counted[make] > 1}
    mixed = {make: versions for make, versions in several.items() if len(versions) > 1}
    if mixed:
        return Failed(tuple(_finding(*item, hosts.local.host) for item in mixed.items()))
    every = [snapshot.part(RdmaDevices) for snapshot in (hosts.local, *hosts.peers)]
    unknown = half_known(device for part in every if isinstance(part, RdmaDevices) for device in part.devices)
    if unknown is not None:
        hidden.append(unknown.missing)
    if hidden:
        return NotObservable(hidden[0])
    if several:
        return Passed(joined(f"{counted[m]} cards {' '.join(m)}: {next(iter(v))}" for m, v in several.items()))
    return NotApplicable("no two cards of one make with a board id to compare")


def _finding(make: Make, versions: dict[str, list[str]], host: str) -> Finding:
    common = max(versions, key=lambda version: len(versions[version]))
    others = [name for version, names in versions.items() if version != common for name in names]
    return Finding(
        code=CODE,
        severity=Severity.INFO,
        subject=joined(others),
        summary=f"{joined(others)} run another firmware than the other cards {' '.join(make)} ({common})",
        evidence=tuple(
            Evidence(
                name=f"fw_ver of {joined(names)}",
                value=version,
                source="/sys/class/infiniband/*/fw_ver",
                threshold=common if version != common else None,
            )
            for version, names in sorted(versions.items())
        ),
        action="bring them to one firmware before looking for other causes of a difference (mlxfwmanager --query)",
        host=host,
        devices=tuple(name for name in others if ":" not in name),
    )


CHECK = Check(code=CODE, title="cards of one make run one firmware", run=run)
