"""FAB004: failed transfers in the log do not all name one network card."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, Outcome, Passed
from kvdiag.checks.completions import completions, peer_host, tally
from kvdiag.checks.logged import Logged, logged, none_logged, times
from kvdiag.derive.device_lists import device_list
from kvdiag.derive.engines import setups
from kvdiag.derive.fabric import fabric_ports
from kvdiag.derive.narrowing import use_only
from kvdiag.derive.rdma import joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import RdmaDevices
from kvdiag.model.snapshot import Snapshot

CODE = "FAB004"
_SHARE = 0.9
"""Of the failures: in the public report that this check comes from it was all of about 1,500, in three runs."""
_ENOUGH = 20
"""Failures below which a share of 90% may be chance."""
_OTHERS = 2
"""Peers (or local cards) that must be involved: with one, the fault may be either end or anything between."""


def run(hosts: Hosts) -> Outcome:
    failed = tuple(item for item in completions(hosts.local, 12) if item.field("device") and peer_host(item))
    total = times(failed)
    if not failed:
        return none_logged(hosts, "no transfer that ran out of retries and names both ends")
    if total < _ENOUGH:
        return NotApplicable(f"{total} failed transfers are too few to compare cards ({_ENOUGH} are needed)")
    local, partners = _worst(failed, lambda item: item.field("device"), peer_host)
    used = _cards_in_use(hosts)
    if local and used == 1:
        return NotApplicable(f"{local} is the only card in use: there is none to compare it with")
    if local and len(partners) >= _OTHERS:
        severity = Severity.WARNING if used is None or _elsewhere(hosts.local, local) else Severity.CRITICAL
        return Failed((_finding(hosts.local, failed, local, partners, severity),))
    far, cards = _worst(failed, _far_card, lambda item: item.field("device"))
    if far and len(cards) >= _OTHERS:
        # Of the peer's cards in use nothing is known: it may be the whole peer.
        return Failed((_finding(hosts.local, failed, far, cards, Severity.WARNING, far=True),))
    shown = joined((f"{name} {count}" for name, count in tally(failed, "device").most_common()), 4)
    return Passed(f"{total} failed transfers are spread over {shown} and {len(tally(failed, 'peer'))} peer(s)")


def _cards_in_use(hosts: Hosts) -> int | None:
    """Return how many cards the engine may use, as its settings or its own log say; None where neither does."""
    found = setups(hosts.local)
    named: set[str] = set()
    for item in () if isinstance(found, Missing) else found:
        named |= {device for connector in item.connectors for device in connector.devices}
        value = item.variable("UCX_NET_DEVICES")
        if isinstance(value, str) and value.strip() != "all":
            named |= {device.partition(":")[0] for device in device_list(value)}
    if named:
        return len(named)
    counts = [int(item.field("number")) for item in logged(hosts.local, "cards_found")]
    return max(counts, default=None)


def _far_card(item: Logged) -> str:
    card = item.field("peer_device")
    return f"{peer_host(item)}@{card}" if card else ""


def _worst(
    failed: Iterable[Logged], suspect: Callable[[Logged], str], other: Callable[[Logged], str]
) -> tuple[str, set[str]]:
    """Return the suspect that has its share of the failures with its partners, or an empty name."""
    counts: Counter[str] = Counter()
    partners: dict[str, set[str]] = defaultdict(set)
    for item in failed:
        counts[suspect(item)] += item.event.count
        partners[suspect(item)].add(other(item))
    name, count = counts.most_common(1)[0]
    return (name, partners[name]) if name and count >= _SHARE * counts.total() else ("", set())


def _finding(
    snapshot: Snapshot,
    failed: tuple[Logged, ...],
    suspect: str,
    partners: set[str],
    severity: Severity,
    *,
    far: bool = False,
) -> Finding:
    mine = tuple(item for item in failed if (_far_card(item) if far else item.field("device")) == suspect)
    kind, others = ("far card", "local cards") if far else ("local card", "peers")
    device = suspect.partition("@")[2] if far else suspect
    absent = not far and _elsewhere(snapshot, device)
    if absent:
        meaning = f"this host has no {device}, so the log is of another one, and the fault is likely there"
    elif severity is Severity.CRITICAL:
        meaning = "the fault is at that card, its cable or its switch port"
    else:
        meaning = f"consistent with a fault of that card or its link{', or of the whole peer' if far else ''}"
    return Finding(
        code=CODE,
        severity=severity,
        subject=suspect,
        summary=(
            f"{times(mine)} of {times(failed)} failed transfers name the {kind} {suspect}, with {len(partners)} "
            f"different {others}: {meaning}"
        ),
        evidence=(
            Evidence(
                name="failed transfers by local card",
                value=joined(f"{name} {number}" for name, number in tally(failed, "device").most_common()),
                source=failed[0].source,
                threshold=f"no card with {_SHARE:.0%} of them",
            ),
            Evidence(
                name="by peer",
                value=joined(f"{name} {number}" for name, number in tally(failed, "peer").most_common()),
                source=failed[0].source,
            ),
            mine[0].evidence("first"),
        ),
        action=_action(
            snapshot, device, suspect.partition("@")[0] if far else "the host of this log" if absent else None
        ),
        host=snapshot.host,
        devices=() if far or absent else (suspect,),
    )


def _elsewhere(snapshot: Snapshot, device: str) -> bool:
    """Return whether the devices of this host are seen and the one that a log names is none of them."""
    devices = snapshot.part(RdmaDevices)
    return (
        not isinstance(devices, Missing)
        and bool(devices.devices)
        and all(item.name != device for item in devices.devices)
    )


def _action(snapshot: Snapshot, device: str, far_host: str | None) -> str:
    look = f"mlxlink -d {device} -c; grep . /sys/class/infiniband/{device}/ports/1/counters/link_downed"
    if far_host is not None:
        return f"on {far_host}: take {device} out of its device list until it is repaired, and read its link: {look}"
    rest = tuple(port for port in fabric_ports(snapshot) if port.device != device)
    only = use_only(snapshot, rest) if rest and any(port.device == device for port in fabric_ports(snapshot)) else None
    out = f" ({only})" if only else ""
    return f"take {device} out of the device list until it is repaired{out}, and read its link: {look}"


CHECK = Check(
    code=CODE,
    title="failed transfers are not all on one card",
    run=run,
    explains=("WC012", "ENG014", "ENG015"),
    explained_by=("FAB002",),
)
