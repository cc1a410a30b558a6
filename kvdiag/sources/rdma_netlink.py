"""RDMA kernel objects and hardware counters through RDMA netlink, without starting the `rdma` program.

`read_summaries` is cheap (one message a device); the object dumps cost in proportion to the objects. Every function
takes an open channel, or opens one; each raises UndeterminedError where the kernel has no RDMA netlink, and OSError
where it refuses. The kernel shows the objects of the caller's pid namespace (and its children) only.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from kvdiag.errors import UndeterminedError
from kvdiag.model.missing import Missing
from kvdiag.model.rdma_resources import (
    KERNEL_OWNED,
    MemoryRegion,
    OwnedCount,
    QueuePair,
    RdmaResources,
    ResourceSummary,
)
from kvdiag.sources._command import output
from kvdiag.sources._nldev import Attribute, Channel, Command, KernelChannel, attributes, number, text, u32
from kvdiag.sources._rdma_resource_text import queue_pairs, summaries
from kvdiag.sources.base import Context

_PROC = Path("/proc")
_SHOWN = re.compile(r"\bpd \d")
_TGID = re.compile(r"^Tgid:\s+(\d+)$", re.MULTILINE)
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
_QP_STATES = dict(enumerate(("RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR")))
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
    with opened(channel) as link:
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
    with opened(channel) as link:
        payloads = link.ask(Command.RES_GET)
    return tuple(_summary(dict(attributes(payload))) for payload in payloads)


def read_queue_pairs(
    device: str | None = None, *, channel: Channel | None = None, proc: Path = _PROC
) -> tuple[QueuePair, ...]:
    """Return the queue pairs of one device (default: of all)."""
    with opened(channel) as link:
        owners = Owners(proc, link)
        return tuple(
            QueuePair(
                device=one.name,
                port=_optional(fields, Attribute.PORT_INDEX, "bound to no port"),
                lqpn=number(fields[Attribute.RES_LQPN]),
                rqpn=_optional(fields, Attribute.RES_RQPN, "not a connected queue pair"),
                type=_name_of(_QP_TYPES, fields[Attribute.RES_TYPE]),
                state=_name_of(_QP_STATES, fields[Attribute.RES_STATE]),
                pid=(owner := owners.of(one, fields, _PD, _CTX))[0],
                owner=owner[1],
            )
            for one, fields in _dump(link, Command.RES_QP_GET, Attribute.RES_QP, device)
        )


def read_memory_regions(
    device: str | None = None, *, channel: Channel | None = None, proc: Path = _PROC
) -> tuple[MemoryRegion, ...]:
    """Return the memory regions of one device (default: of all); lengths in bytes, keys are not asked for."""
    with opened(channel) as link:
        owners = Owners(proc, link)
        return tuple(
            MemoryRegion(
                device=one.name,
                mrn=number(fields[Attribute.RES_MRN]),
                length=number(fields[Attribute.RES_MRLEN]),
                pid=(owner := owners.of(one, fields, _PD, _CTX))[0],
                owner=owner[1],
            )
            for one, fields in _dump(link, Command.RES_MR_GET, Attribute.RES_MR, device)
        )


def read_other_counts(
    device: str | None = None, *, channel: Channel | None = None, proc: Path = _PROC
) -> tuple[OwnedCount, ...]:
    """Return how many pd, cq and cm_id each process holds on one device (default: on all)."""
    counts: dict[tuple[str, str, int | Missing, str], int] = {}
    with opened(channel) as link:
        owners = Owners(proc, link)
        for kind, command, table in _OTHER_KINDS:
            for one, fields in _dump(link, command, table, device):
                key = (one.name, kind, *owners.of(one, fields, _CTX))
                counts[key] = counts.get(key, 0) + 1
    return tuple(
        OwnedCount(device=name, kind=kind, pid=pid, owner=owner, count=count)
        for (name, kind, pid, owner), count in counts.items()
    )


def read_resources(device: str | None = None, *, channel: Channel | None = None, proc: Path = _PROC) -> RdmaResources:
    """Return summaries, queue pairs, memory regions and the other counts, of one device or of all."""
    with opened(channel) as link:
        return RdmaResources(
            summaries=tuple(one for one in read_summaries(link) if device in (None, one.device)),
            queue_pairs=read_queue_pairs(device, channel=link, proc=proc),
            memory_regions=read_memory_regions(device, channel=link, proc=proc),
            others=read_other_counts(device, channel=link, proc=proc),
        )


class RdmaNetlink:
    """Asks the kernel when live; a copied tree keeps the output of `rdma resource show` in
    `commands/rdma-resource-show.txt` and of `rdma -j resource show qp` in `commands/rdma-resource-show-qp.txt`.
    """

    part = RdmaResources

    def read(self, context: Context) -> RdmaResources | Missing:
        if not context.live:
            return _copied(context)
        try:
            return read_resources(proc=context.procfs)
        except UndeterminedError as error:
            return Missing(str(error))


SOURCE = RdmaNetlink()


def _copied(context: Context) -> RdmaResources | Missing:
    shown = output(context, "rdma-resource-show", ("rdma", "resource"), _SHOWN)
    if isinstance(shown, Missing):
        return shown
    listed = output(context, "rdma-resource-show-qp", ())
    return RdmaResources(
        summaries=summaries(shown.text),
        queue_pairs=() if isinstance(listed, Missing) else queue_pairs(listed.text),
        memory_regions=(),
        others=(),
    )


@dataclass(frozen=True, slots=True)
class _Holder:
    """A kind of object that others belong to, and the attribute by which they name it."""

    command: Command
    table: Attribute
    identity: Attribute


_PD = _Holder(Command.RES_PD_GET, Attribute.RES_PD, Attribute.RES_PDN)
_CTX = _Holder(Command.RES_CTX_GET, Attribute.RES_CTX, Attribute.RES_CTXN)


class Owners:
    """Who made an object: the kernel gives the creating thread's id, or the name of a kernel module.

    It gives neither where that thread has ended; then the object belongs to whoever made its protection domain, or
    opened its context.
    """

    def __init__(self, proc: Path, link: Channel) -> None:
        self._proc = proc
        self._link = link
        self._processes: dict[int, tuple[int | Missing, str]] = {}
        self._holders: dict[tuple[str, _Holder], dict[int, dict[int, bytes]]] = {}

    def of(self, device: Device, fields: dict[int, bytes], *holders: _Holder) -> tuple[int | Missing, str]:
        """Return the process, or KERNEL_OWNED, and its name."""
        if raw := fields.get(Attribute.RES_PID):
            thread = number(raw)
            if thread not in self._processes:
                self._processes[thread] = self._process_of(thread)
            return self._processes[thread]
        if name := fields.get(Attribute.RES_KERN_NAME):
            return KERNEL_OWNED, text(name)
        for position, holder in enumerate(holders):
            if raw := fields.get(holder.identity):
                entry = self._entries(device, holder).get(number(raw))
                if entry is not None:
                    return self.of(device, entry, *holders[position + 1 :])
        return Missing("the thread that made it has ended"), ""

    def _entries(self, device: Device, holder: _Holder) -> dict[int, dict[int, bytes]]:
        key = (device.name, holder)
        if key not in self._holders:
            dumped = _dump(self._link, holder.command, holder.table, device.name)
            try:
                self._holders[key] = {number(fields[holder.identity]): fields for _, fields in dumped}
            except OSError:  # kernels before 5.10 do not list contexts
                self._holders[key] = {}
        return self._holders[key]

    def _process_of(self, thread: int) -> tuple[int | Missing, str]:
        try:
            status = (self._proc / str(thread) / "status").read_text(errors="replace")
        except OSError:
            return Missing(f"thread {thread} is gone or not visible"), ""
        match = _TGID.search(status)
        if match is None:
            return Missing(f"{self._proc / str(thread) / 'status'} has no Tgid"), ""
        process = int(match[1])
        try:
            return process, (self._proc / str(process) / "comm").read_text(errors="replace").strip()
        except OSError:
            return process, ""


def opened(channel: Channel | None) -> AbstractContextManager[Channel]:
    """Return the channel, or a new one that ends with its block."""
    return KernelChannel() if channel is None else nullcontext(channel)


def _chosen(link: Channel, device: str | None) -> list[Device]:
    return [one for one in read_devices(link) if device in (None, one.name)]


def _dump(
    link: Channel, command: Command, table: Attribute, device: str | None
) -> Iterator[tuple[Device, dict[int, bytes]]]:
    for one in _chosen(link, device):
        for payload in link.ask(command, u32(Attribute.DEV_INDEX, one.index)):
            for kind, entries in attributes(payload):
                if kind == table:
                    for _, entry in attributes(entries):
                        yield one, dict(attributes(entry))


def _summary(fields: dict[int, bytes]) -> ResourceSummary:
    counts = {}
    for _, entry in attributes(fields.get(Attribute.RES_SUMMARY, b"")):
        values = dict(attributes(entry))
        counts[text(values[Attribute.RES_SUMMARY_ENTRY_NAME])] = number(values[Attribute.RES_SUMMARY_ENTRY_CURR])
    return ResourceSummary(device=text(fields[Attribute.DEV_NAME]), counts=counts)


def queue_pair_type(raw: bytes) -> str:
    """Return a queue pair's type as the rdma tool prints it."""
    return _name_of(_QP_TYPES, raw)


def hw_counters(payload: bytes) -> dict[str, int]:
    """Return the driver's counters in a message or an entry of one, by the driver's own names."""
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


def _name_of(names: Mapping[int, str], raw: bytes) -> str:
    code = number(raw)
    return names.get(code, f"UNKNOWN({code})")
