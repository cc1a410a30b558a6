"""NET002: RoCE ports that share an IP subnet each answer for their own address only, and send from their own port."""

from collections import defaultdict

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.rails import Rail, connected, rails
from kvdiag.derive.rdma import joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.routing import Routing

CODE = "NET002"


def run(hosts: Hosts) -> Outcome:
    found = rails(hosts.local)
    if isinstance(found, Missing):
        return NotObservable(found.missing)
    if len(found) < 2:
        return NotApplicable("fewer than two RoCE ports with an address")
    routing = hosts.local.part(Routing)
    if isinstance(routing, Missing):
        return NotObservable(routing.missing)
    if isinstance(routing.routes, Missing):
        return NotObservable(routing.routes.missing)
    shared = _shared(found, routing)
    if not shared:
        return Passed(f"{len(found)} RoCE ports are in subnets of their own")
    open_ = {
        network: [rail for rail in members if not _is_kept_apart(rail, routing)] for network, members in shared.items()
    }
    failing = {network: members for network, members in open_.items() if members}
    if not failing:
        return Passed(f"{joined(shared)} is shared, with ARP settings or source rules that keep the ports apart")
    if isinstance(routing.source_rules, Missing):
        return NotObservable(routing.source_rules.missing)
    hidden = next((why for members in failing.values() for rail in members if (why := _hidden(rail, routing))), None)
    if hidden is not None:
        return NotObservable(hidden.missing)
    return Failed(
        tuple(
            _finding(network, shared[network], members, routing, hosts.local.host)
            for network, members in failing.items()
        )
    )


def _shared(found: tuple[Rail, ...], routing: Routing) -> dict[str, list[Rail]]:
    """Return the IPv4 networks that two or more interfaces of RoCE ports are in."""
    members: dict[str, list[Rail]] = defaultdict(list)
    for rail in found:
        for network in connected(routing, rail.interface):
            if ":" not in network and not network.endswith("/32"):
                members[network].append(rail)
    return {network: rails for network, rails in members.items() if len({rail.interface for rail in rails}) > 1}


def _hidden(rail: Rail, routing: Routing) -> Missing | None:
    setting = routing.arp_of(rail.interface)
    if setting is None:
        return Missing(f"/proc/sys/net/ipv4/conf/{rail.interface} does not exist")
    return next((value for value in (setting.arp_ignore, setting.arp_announce) if isinstance(value, Missing)), None)


def _is_kept_apart(rail: Rail, routing: Routing) -> bool:
    """Return whether ARP answers stay on the port that owns the address and announce it, or a rule routes by source.

    arp_ignore 1 and above, arp_announce 2: Documentation/networking/ip-sysctl of the kernel.
    """
    setting = routing.arp_of(rail.interface)
    quiet = (
        setting is not None
        and not isinstance(setting.arp_ignore, Missing)
        and not isinstance(setting.arp_announce, Missing)
        and setting.arp_ignore >= 1
        and setting.arp_announce == 2
    )
    rules = () if isinstance(routing.source_rules, Missing) else routing.source_rules
    sources = {rule.source.partition("/")[0] for rule in rules if rule.source.endswith("/32") or "/" not in rule.source}
    return quiet or any(str(address) in sources for address in rail.addresses)


def _finding(network: str, members: list[Rail], bad: list[Rail], routing: Routing, host: str) -> Finding:
    names = joined(f"{rail.port.name} ({rail.interface})" for rail in members)
    evidence = [Evidence(name=f"ports in {network}", value=names, source="/proc/net/route", threshold="one")]
    for rail in bad:
        setting = routing.arp_of(rail.interface)
        if setting is not None:
            evidence.append(
                Evidence(
                    name=f"{rail.interface} arp_ignore, arp_announce",
                    value=f"{setting.arp_ignore}, {setting.arp_announce}",
                    source=f"/proc/sys/net/ipv4/conf/{rail.interface}",
                    threshold="2, 2, or a rule for its source address",
                )
            )
    settings = " ".join(
        f"net.ipv4.conf.{rail.interface}.arp_ignore=2 net.ipv4.conf.{rail.interface}.arp_announce=2" for rail in bad
    )
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=network,
        summary=(
            f"{len(members)} RoCE ports share {network} without ARP settings or source rules: the kernel answers and "
            "sends for one through another"
        ),
        evidence=tuple(evidence),
        action=f"give each port a subnet of its own; or: sysctl -w {settings}, with a routing table per source address",
        host=host,
        devices=tuple(rail.port.device for rail in bad),
    )


CHECK = Check(code=CODE, title="RoCE ports of one subnet are kept apart", run=run)
