"""Counters of single queue pairs through RDMA netlink: what `rdma statistic qp show` prints.

The kernel keeps them only where somebody has asked for it (`rdma statistic qp set link DEV/PORT auto type,pid on`) and
the driver can: of those in the kernel mlx5 alone (ib_device_ops.counter_bind_qp). Nothing is switched on here. Written
after include/uapi/rdma/rdma_netlink.h and nldev.c of Linux 5.3 and later.
"""

from collections.abc import Iterator
from pathlib import Path

from kvdiag.model.missing import Missing
from kvdiag.model.rdma_statistic import QueuePairCounter
from kvdiag.sources._nldev import Attribute, Channel, Command, attributes, number, u32
from kvdiag.sources.rdma_netlink import Device, Owners, hw_counters, opened, queue_pair_type, read_devices

_MODES = {0: "none", 1: "auto", 2: "manual"}  # enum rdma_nl_counter_mode
_PROC = Path("/proc")


def read_modes(channel: Channel | None = None) -> dict[tuple[str, int], str | Missing]:
    """Return how each port binds queue pairs to counters: "none", "auto" or "manual"; Missing where it does not say.

    UndeterminedError where the kernel has no RDMA netlink.
    """
    found: dict[tuple[str, int], str | Missing] = {}
    with opened(channel) as link:
        for device in read_devices(link):
            for port in range(1, device.ports + 1):
                found[device.name, port] = _mode(link, device, port)
    return found


def read_queue_pair_counters(channel: Channel | None = None, proc: Path = _PROC) -> tuple[QueuePairCounter, ...]:
    """Return every counter of every device; none where nobody has asked for any, or no driver has them.

    UndeterminedError where the kernel has no RDMA netlink.
    """
    with opened(channel) as link:
        owners = Owners(proc, link)
        return tuple(one for device in read_devices(link) for one in _counters(link, device, owners))


def _mode(link: Channel, device: Device, port: int) -> str | Missing:
    where = u32(Attribute.DEV_INDEX, device.index) + u32(Attribute.PORT_INDEX, port)
    try:
        (payload,) = link.ask(Command.STAT_GET, where + u32(Attribute.STAT_RES, Attribute.RES_QP), dump=False)
    except (OSError, ValueError) as error:
        return Missing(f"{device.name}/{port}: the kernel does not tell: {error}")
    fields = dict(attributes(payload))
    if Attribute.STAT_MODE not in fields:
        return Missing(f"{device.name}/{port}: the kernel does not tell")
    code = number(fields[Attribute.STAT_MODE])
    return _MODES.get(code, f"unknown ({code})")


def _counters(link: Channel, device: Device, owners: Owners) -> Iterator[QueuePairCounter]:
    where = u32(Attribute.DEV_INDEX, device.index) + u32(Attribute.STAT_RES, Attribute.RES_QP)
    try:
        payloads = link.ask(Command.STAT_GET, where)
    except OSError:  # kernels before 5.3 know no such question
        return
    for payload in payloads:
        for kind, table in attributes(payload):
            if kind == Attribute.STAT_COUNTER:
                for _, entry in attributes(table):
                    yield _counter(device, entry, owners)


def _counter(device: Device, entry: bytes, owners: Owners) -> QueuePairCounter:
    fields = dict(attributes(entry))
    bound = fields.get(Attribute.RES_TYPE)
    told = Attribute.RES_PID in fields or Attribute.RES_KERN_NAME in fields
    return QueuePairCounter(
        device=device.name,
        port=number(fields[Attribute.PORT_INDEX]),
        id=number(fields[Attribute.STAT_COUNTER_ID]),
        type=Missing("not bound by type") if bound is None else queue_pair_type(bound),
        pid=owners.of(device, fields)[0] if told else Missing("not bound by process"),
        queue_pairs=sum(1 for _ in attributes(fields.get(Attribute.RES_QP, b""))),
        values=hw_counters(entry),
    )
