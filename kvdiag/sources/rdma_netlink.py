"""RDMA kernel objects and hardware counters through RDMA netlink, without starting the `rdma` program.

`read_summaries` is cheap (one message a device); the object dumps cost in proportion to the objects. Every function
takes an open channel, or opens one; each raises UndeterminedError where the kernel has no RDMA netlink, and OSError
where it refuses. The kernel shows the objects of the caller's pid namespace (and its children) only.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from kvdiag.errors import UndeterminedError
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import PortCounters
from kvdiag.model.rdma_resources import MemoryRegion, OwnedCount, QueuePair, RdmaResources, ResourceSummary
from kvdiag.sources._nldev import Attribute, Channel, Command, KernelChannel, attributes, number, text, u32
from kvdiag.sources.base import Context

_PROC = Path("/proc")
# enum ib_qp_type and enum ib_qp_state (include/rdma/ib_verbs.h), spelled as the rdma tool prints them.
_QP_TYPES = {
    0: "SMI",
    1: "GSI",
    2: "RC",
    3: "UC",
    4: "UD",
    5: "RAW_IPV6",
    6: "RAW_ETHERTYPE",
    8: "RAW_PACKET",
    9: "XRC_INI",
    10: "XRC_TGT",
    255: "DRIVER",
}
_QP_STATES = ("RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR")
_OTHER_KINDS = (
    ("pd", Command.RES_PD_GET, Attribute.RES_PD),
    ("cq", Command.RES_CQ_GET, Attribute.RES_CQ),
    ("cm_id", Command.RES_CM_ID_GET, Attribute.RES_CM_ID),
)


@dataclass(frozen=True, slots=True)
class Device:
    """`index` is the kernel's, valid until the device goes away; ports are numbered from 1."""

    index: int
    name: str
    ports: int


def read_devices(channel: Channel | None = None) -> tuple[Device, ...]:
    """Return every RDMA device, in the order of the kernel's index."""
    with _opened(channel) as link:
        devices = [dict(attributes(payload)) for payload in link.ask(Command.GET)]
    return tuple(
        Device(
            index=number(fields[Attribute.DEV_INDEX]),
            name=text(fields[Attribute.DEV_NAME]),
            ports=number(fields[Attribute.PORT_INDEX]),
        )
        for fields in devices
    )


def read_summaries(channel: Channel | None = None) -> tuple[ResourceSummary, ...]:
    """Return the number of live objects by kind of every device; costs one message a device."""
    with _opened(channel) as link:
        payloads = link.ask(Command.RES_GET)
    return tuple(_summary(dict(attributes(payload))) for payload in payloads)


def read_queue_pairs(
    device: str | None = None, *, channel: Channel | None = None, proc: Path = _PROC
) -> tuple[QueuePair, ...]:
    """Return the queue pairs of one device (default: of all)."""
    owners = _Owners(proc)
    return tuple(
        QueuePair(
            device=name,
            port=_optional(fields, Attribute.PORT_INDEX, "bound to no port"),
            lqpn=number(fields[Attribute.RES_LQPN]),
            rqpn=_optional(fields, Attribute.RES_RQPN, "not a connected queue pair"),
            type=_name_of(_QP_TYPES.get, fields[Attribute.RES_TYPE]),
            state=_name_of(dict(enumerate(_QP_STATES)).get, fields[Attribute.RES_STATE]),
            pid=(owner := owners.of(fields))[0],
            owner=owner[1],
        )
        for name, fields in _dump(Command.RES_QP_GET, Attribute.RES_QP, device, channel)
    )


def read_memory_regions(
    device: str | None = None, *, channel: Channel | None = None, proc: Path = _PROC
) -> tuple[MemoryRegion, ...]:
    """Return the memory regions of one device (default: of all); lengths in bytes, keys are not asked for."""
    owners = _Owners(proc)
    return tuple(
        MemoryRegion(
            device=name,
            mrn=number(fields[Attribute.RES_MRN]),
            length=number(fields[Attribute.RES_MRLEN]),
            pid=(owner := owners.of(fields))[0],
            owner=owner[1],
        )
        for name, fields in _dump(Command.RES_MR_GET, Attribute.RES_MR, device, channel)
    )


def read_other_counts(
    device: str | None = None, *, channel: Channel | None = None, proc: Path = _PROC
) -> tuple[OwnedCount, ...]:
    """Return how many pd, cq and cm_id each process holds on one device (default: on all)."""
    owners = _Owners(proc)
    counts: dict[tuple[str, str, int | Missing, str], int] = {}
    with _opened(channel) as link:
        for kind, command, table in _OTHER_KINDS:
            for name, fields in _dump(command, table, device, link):
                key = (name, kind, *owners.of(fields))
                counts[key] = counts.get(key, 0) + 1
    return tuple(
        OwnedCount(device=name, kind=kind, pid=pid, owner=owner, count=count)
        for (name, kind, pid, owner), count in counts.items()
    )


def read_resources(device: str | None = None, *, channel: Channel | None = None, proc: Path = _PROC) -> RdmaResources:
    """Return summaries, queue pairs, memory regions and the other counts, of one device or of all."""
    with _opened(channel) as link:
        return RdmaResources(
            summaries=tuple(one for one in read_summaries(link) if device in (None, one.device)),
            queue_pairs=read_queue_pairs(device, channel=link, proc=proc),
            memory_regions=read_memory_regions(device, channel=link, proc=proc),
            others=read_other_counts(device, channel=link, proc=proc),
        )


def read_hw_counters(device: str | None = None, *, channel: Channel | None = None) -> tuple[PortCounters, ...]:
    """Return the driver's counters of every port, by the driver's own names; ports without any are left out."""
    found = []
    with _opened(channel) as link:
        for one in _chosen(link, device):
            for port in range(1, one.ports + 1):
                where = u32(Attribute.DEV_INDEX, one.index) + u32(Attribute.PORT_INDEX, port)
                try:
                    (payload,) = link.ask(Command.STAT_GET, where, dump=False)
                except OSError:
                    continue
                found.append(
                    PortCounters(device=one.name, port=port, hw_counters=_counters(payload), counters={}, unreadable={})
                )
    return tuple(found)


class RdmaNetlink:
    """The source of RdmaResources on a live host."""

    part = RdmaResources

    def read(self, context: Context) -> RdmaResources | Missing:
        if not context.live:
            return Missing("RDMA netlink answers for the running kernel only, not for a copied tree")
        try:
            return read_resources(proc=context.procfs)
        except UndeterminedError as error:
            return Missing(str(error))


SOURCE = RdmaNetlink()


class _Owners:
    """Who made an object: the kernel gives the creating thread's id, or the name of a kernel module."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._known: dict[int, tuple[int | Missing, str]] = {}

    def of(self, fields: dict[int, bytes]) -> tuple[int | Missing, str]:
        raw = fields.get(Attribute.RES_PID)
        if raw is None:
            name = fields.get(Attribute.RES_KERN_NAME)
            if name is None:
                return Missing("the thread that made it has exited"), ""
            return Missing("owned by the kernel"), text(name)
        thread = number(raw)
        if thread not in self._known:
            self._known[thread] = self._process_of(thread)
        return self._known[thread]

    def _process_of(self, thread: int) -> tuple[int | Missing, str]:
        try:
            status = (self._proc / str(thread) / "status").read_text()
        except OSError:
            return Missing(f"thread {thread} is gone or not visible"), ""
        process = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Tgid:"))
        try:
            return process, (self._proc / str(process) / "comm").read_text().strip()
        except OSError:
            return process, ""


def _opened(channel: Channel | None) -> AbstractContextManager[Channel]:
    return KernelChannel() if channel is None else nullcontext(channel)


def _chosen(link: Channel, device: str | None) -> list[Device]:
    return [one for one in read_devices(link) if device in (None, one.name)]


def _dump(
    command: Command, table: Attribute, device: str | None, channel: Channel | None
) -> Iterator[tuple[str, dict[int, bytes]]]:
    with _opened(channel) as link:
        for one in _chosen(link, device):
            for payload in link.ask(command, u32(Attribute.DEV_INDEX, one.index)):
                for kind, entries in attributes(payload):
                    if kind == table:
                        for _, entry in attributes(entries):
                            yield one.name, dict(attributes(entry))


def _summary(fields: dict[int, bytes]) -> ResourceSummary:
    counts = {}
    for _, entry in attributes(fields.get(Attribute.RES_SUMMARY, b"")):
        values = dict(attributes(entry))
        counts[text(values[Attribute.RES_SUMMARY_ENTRY_NAME])] = number(values[Attribute.RES_SUMMARY_ENTRY_CURR])
    return ResourceSummary(device=text(fields[Attribute.DEV_NAME]), counts=counts)


def _counters(payload: bytes) -> dict[str, int]:
    found = {}
    for kind, entries in attributes(payload):
        if kind == Attribute.STAT_HWCOUNTERS:
            for _, entry in attributes(entries):
                values = dict(attributes(entry))
                name = text(values[Attribute.STAT_HWCOUNTER_ENTRY_NAME])
                found[name] = number(values[Attribute.STAT_HWCOUNTER_ENTRY_VALUE])
    return found


def _optional(fields: dict[int, bytes], kind: Attribute, reason: str) -> int | Missing:
    raw = fields.get(kind)
    return Missing(reason) if raw is None else number(raw)


def _name_of(lookup: Callable[[int], str | None], raw: bytes) -> str:
    code = number(raw)
    return lookup(code) or f"UNKNOWN({code})"
