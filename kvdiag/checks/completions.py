"""What the checks of completion errors share: who failed towards whom, what stood first, and the local port's state."""

from collections import Counter
from collections.abc import Iterable

from kvdiag.checks.base import Failed, Hosts, Outcome
from kvdiag.checks.logged import Logged, logged, none_logged, times
from kvdiag.derive.rdma import attribute, joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing, present
from kvdiag.model.rdma import RdmaDevices
from kvdiag.model.snapshot import Snapshot

FLUSHED = "5"
"""IBV_WC_WR_FLUSH_ERR: the queue pair was in error before, so it is never the first."""
_MOST = 4


def completions(snapshot: Snapshot, status: int | None = None) -> tuple[Logged, ...]:
    """Return the completion errors of the logs, all or those of one status."""
    found = logged(snapshot, "completion")
    if status is not None:
        found = tuple(item for item in found if item.field("status") == str(status))
    # The provider prints each error that the library above it reports too.
    reported = tuple(item for item in found if item.field("reporter") != "provider")
    return reported or found


def peer_host(item: Logged) -> str:
    """Return the peer without its port, which differs by process ("192.0.2.7:16388" and "[2001:db8::1]:1" have one)."""
    peer = item.field("peer")
    head, _, port = peer.rpartition(":")
    if port.isdecimal() and head and (":" not in head or head.endswith("]")):
        return head.strip("[]")
    return peer.strip("[]")


def tally(found: Iterable[Logged], name: str) -> Counter[str]:
    """Count lines by a field ("device", "peer_device") or by "peer" host; lines that do not name it are left out."""
    counts: Counter[str] = Counter()
    for item in found:
        key = peer_host(item) if name == "peer" else item.field(name)
        if key:
            counts[key] += item.event.count
    return counts


def judge(hosts: Hosts, *, code: str, status: int, text: str, meaning: str, action: str) -> Outcome:
    """Return a warning for a status that stands in the logs: `meaning` says what it is consistent with."""
    found = completions(hosts.local, status)
    if not found:
        return none_logged(hosts, f'no "{text}" (status {status})')
    devices, peers = tally(found, "device"), tally(found, "peer")
    where = f" on {_counted(devices)}" if devices else ""
    towards = f" towards {_counted(peers)}" if peers else ""
    total = times(found)
    finding = Finding(
        code=code,
        severity=Severity.WARNING,
        subject="engine log",
        summary=f'{total} transfer(s) ended in "{text}" (status {status}){where}{towards}: {meaning}',
        evidence=(
            found[0].evidence("first"),
            *_vendor(found),
            *_earlier(hosts.local, found[0]),
            *_flushed(hosts.local, found[0]),
            *_ports(hosts.local, devices),
        ),
        action=action.format(peer=next(iter(peers), "PEER"), device=next(iter(devices), "DEVICE")),
        host=hosts.local.host,
        devices=tuple(sorted(devices)),
    )
    return Failed((finding,))


def _counted(counts: Counter[str]) -> str:
    if len(counts) == 1:
        return next(iter(counts))
    return joined((f"{name} ({count})" for name, count in counts.most_common()), _MOST)


def _vendor(found: tuple[Logged, ...]) -> tuple[Evidence, ...]:
    codes = tally(found, "vendor")
    if not codes:
        return ()
    shown = joined(sorted({code if code.startswith("0x") else hex(int(code)) for code in codes}))
    return (Evidence(name="vendor code", value=shown, source=found[0].source),)


def _earlier(snapshot: Snapshot, first: Logged) -> tuple[Evidence, ...]:
    """Return an error of another status before it in the same log: that one is to be understood first."""
    before = [
        item
        for item in completions(snapshot)
        if item.log is first.log
        and item.event.offset < first.event.offset
        and item.field("status") not in (FLUSHED, first.field("status"))
    ]
    return (before[0].evidence("before it"),) if before else ()


def _flushed(snapshot: Snapshot, first: Logged) -> tuple[Evidence, ...]:
    after = [item for item in completions(snapshot, int(FLUSHED)) if item.log is first.log]
    if not after:
        return ()
    return (
        Evidence(
            name="flushed (status 5)",
            value=f"{times(tuple(after))} more requests of the same queue pairs; they follow from it",
            source=after[0].source,
        ),
    )


def _ports(snapshot: Snapshot, devices: Counter[str]) -> tuple[Evidence, ...]:
    """Return what the ports of the devices that the log names look like now."""
    rdma = present(snapshot.part(RdmaDevices))
    ports = [port for port in (rdma.ports if rdma else ()) if port.device in devices]
    return tuple(
        Evidence(
            name=f"{port.name} now",
            value=joined(
                str(value)
                for value in (port.state, port.phys_state, port.rate_text, port.link_layer)
                if not isinstance(value, Missing)
            ),
            source=attribute(port, "state"),
        )
        for port in ports[:_MOST]
    )
