"""ENG041: queue pairs and completion queues could be made and connected."""

from collections import defaultdict

from kvdiag.checks.base import Check, Failed, Hosts, Outcome
from kvdiag.checks.logged import Logged, logged, none_logged, times
from kvdiag.derive.rdma import device_of, joined, routable_v2
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing, present
from kvdiag.model.rdma import RdmaDevices

CODE = "ENG041"
_CREATE = {
    ("QP", "12"): (
        "the card has no queue pair left (they leak, or there are too many peers), or the memory lock limit is reached",
        "watch it: rdma -j resource show qp | grep -o '\"pid\":[0-9]*' | sort | uniq -c; "
        "Mooncake: export MC_ENABLE_DEST_DEVICE_AFFINITY=1",
    ),
    ("CQ", "12"): (
        "the memory lock limit of the process is reached (LIM001)",
        "grep 'Max locked memory' /proc/PID/limits of the engine: it must be unlimited",
    ),
    ("QP", "14"): (
        "consistent with bnxt_re's provider in rdma-core before 63, which corrupts commands from several threads",
        "dpkg -s ibverbs-providers | grep Version (or rpm -q libibverbs): install rdma-core 63 or later",
    ),
}
_CREATE_OTHER = (
    "the card or its driver refused",
    "dmesg -T | grep -E 'CREATE_QP|CREATE_CQ|mlx5|bnxt|irdma' at the time of the line",
)
_MODIFY = {
    "110": "the far end does not answer at the address of its GID: wrong GID index, another rail, or no route",
    "22": "a value does not fit the port: GID index, MTU, or the LID of another subnet",
}


def run(hosts: Hosts) -> Outcome:
    created = logged(hosts.local, "queue_failed")
    limits = logged(hosts.local, "queue_limit")
    modified = logged(hosts.local, "queue_modify_failed")
    hints = logged(hosts.local, "memlock_hint")
    if not created and not limits and not modified and not hints:
        return none_logged(hosts, "no failed queue pair")
    findings = [_created(hosts, errno, items) for errno, items in _by_errno(created)]
    if hints and not any(item.field("errno") == "12" for item in created):
        findings.append(_hint(hosts, hints))
    if limits:
        findings.append(_limit(hosts, limits))
    findings += [_modified(hosts, errno, items) for errno, items in _by_errno(modified)]
    return Failed(tuple(findings))


def _by_errno(found: tuple[Logged, ...]) -> list[tuple[str, tuple[Logged, ...]]]:
    groups: dict[str, list[Logged]] = defaultdict(list)
    for item in found:
        groups[item.field("errno")].append(item)
    return [(errno, tuple(items)) for errno, items in sorted(groups.items())]


def _created(hosts: Hosts, errno: str, items: tuple[Logged, ...]) -> Finding:
    kinds = joined(sorted({item.field("object").upper() for item in items}))
    meaning, action = _CREATE.get((kinds[-2:], errno), _CREATE_OTHER)
    hints = logged(hosts.local, "memlock_hint") if errno == "12" else ()
    hint = tuple(item for item in hints if item.source != items[0].source)
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject="engine log",
        summary=f"creating a {kinds} failed {times(items)} time(s){f' [{errno}]' if errno else ''}: {meaning}",
        evidence=(items[0].evidence("first"), *(item.evidence("UCX's hint") for item in hint[:1])),
        action=action,
        host=hosts.local.host,
    )


def _hint(hosts: Hosts, items: tuple[Logged, ...]) -> Finding:
    limit = items[0].field("limit")
    return Finding(
        code=CODE,
        # UCX prints it also for transports that nothing uses.
        severity=Severity.WARNING,
        subject="engine log",
        summary=f"UCX asks for more lockable memory{f' than {limit}' if limit else ''} ({times(items)} time(s))",
        evidence=(items[0].evidence("first", "unlimited"),),
        action="grep 'Max locked memory' /proc/PID/limits of the engine; read kvdiag explain LIM001",
        host=hosts.local.host,
    )


def _limit(hosts: Hosts, items: tuple[Logged, ...]) -> Finding:
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject="kernel log",
        summary=(
            f"the card refused a {items[0].field('object')} {times(items)} time(s): a limit of the card or its "
            "firmware "
            "is exceeded, maybe far below the advertised maximum"
        ),
        evidence=(items[0].evidence("first"),),
        action="rdma resource show (qp and mr per device); compare fw_ver with a host where it works",
        host=hosts.local.host,
    )


def _modified(hosts: Hosts, errno: str, items: tuple[Logged, ...]) -> Finding:
    states = joined(sorted({item.field("state") for item in items}))
    meaning = _MODIFY.get(errno, "the card refused the connection's parameters")
    devices = present(hosts.local.part(RdmaDevices))
    ports = [port for port in (devices.ports if devices else ()) if port.state == "ACTIVE"][:4]
    gids = tuple(
        Evidence(
            name=f"{port.name} GIDs",
            value=_gids(port.gids if isinstance(port.gids, Missing) else routable_v2(port)),
            source=f"/sys/class/infiniband/{port.device}/ports/{port.number}/gids",
        )
        for port in ports
        if devices and port.link_layer == "Ethernet" and device_of(devices, port).node_type != "RNIC"
    )
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject="engine log",
        summary=f"connecting a QP ({states}) failed {times(items)} time(s){f' [{errno}]' if errno else ''}: {meaning}",
        evidence=(items[0].evidence("first"), *gids),
        action=(
            "give both sides a GID index of the list above that the other can reach (MC_GID_INDEX, UCX_IB_GID_INDEX), "
            "and compare with the peer: kvdiag preflight --peer PEER:18580"
        ),
        host=hosts.local.host,
    )


def _gids(gids: object) -> str:
    if isinstance(gids, Missing):
        return str(gids)
    assert isinstance(gids, tuple)
    return joined((f"{gid.index} {gid.gid}" for gid in gids), 4) or "no routable RoCE v2 GID"


CHECK = Check(
    code=CODE,
    title="queue pairs can be made and connected",
    run=run,
    explained_by=(
        *("CON001", "CON006", "GID001", "GID002", "GID003", "LIM001", "LIM003", "LIM004", "MTU001"),
        *("NET001", "NET002", "TRN004", "VND001"),
    ),
)
