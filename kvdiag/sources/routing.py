"""Routes from /proc/net, policy rules from `ip rule`, ARP settings from /proc/sys/net."""

import ipaddress
import json

from kvdiag.model.missing import Missing, present
from kvdiag.model.routing import ArpSetting, Route, Routing, SourceRule
from kvdiag.sources._command import output
from kvdiag.sources.base import Context
from kvdiag.sources.tree import Tree

_CONF = "/proc/sys/net/ipv4/conf"
_UP, _REJECT = 0x1, 0x200
_LIMIT = 1 << 32
"""Metrics and priorities are 32-bit numbers; a larger one is no text of the kernel's."""


class RoutingSource:
    """The namespace that /proc/net shows; a copied tree keeps `ip -j rule` in `commands/ip-j-rule.txt`."""

    part = Routing

    def read(self, context: Context) -> Routing | Missing:
        tree = Tree.of(context)
        ipv4 = tree.read("/proc/net/route")
        if isinstance(ipv4, str) and not ipv4.startswith("Iface"):
            ipv4 = Missing(f"/proc/net/route holds {ipv4[:20]!r}, not the kernel's table")
        ipv6 = present(tree.read("/proc/net/ipv6_route")) or ""
        arp = _arp(tree)
        if isinstance(ipv4, Missing) and not arp:
            return ipv4
        return Routing(
            routes=ipv4 if isinstance(ipv4, Missing) else (*_ipv4_routes(ipv4), *_ipv6_routes(ipv6)),
            source_rules=_source_rules(context),
            arp=arp,
        )


def _ipv4_routes(text: str) -> list[Route]:
    """Return the usable unicast routes of /proc/net/route, which writes addresses in the host's byte order."""
    found = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        try:
            flags = int(fields[3], 16)
            destination, gateway, mask = (_address(fields[number]) for number in (1, 2, 7))
            network = ipaddress.IPv4Network(f"{destination}/{mask}")
            metric = int(fields[6])
        except (IndexError, ValueError):
            continue
        if flags & _UP and not flags & _REJECT and 0 <= metric < _LIMIT:
            via = "" if int(gateway) == 0 else str(gateway)
            found.append(Route(interface=fields[0], network=str(network), gateway=via, metric=metric))
    return found


def _address(text: str) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(int.from_bytes(bytes.fromhex(text), "little"))


def _ipv6_routes(text: str) -> list[Route]:
    """Return the usable routes of /proc/net/ipv6_route that are neither on `lo` nor of one host or multicast."""
    found = []
    for line in text.splitlines():
        fields = line.split()
        try:
            network = ipaddress.IPv6Network((bytes.fromhex(fields[0]), int(fields[1], 16)))
            gateway = ipaddress.IPv6Address(bytes.fromhex(fields[4]))
            metric, flags = int(fields[5], 16), int(fields[8], 16)
            interface = fields[9]
        except (IndexError, ValueError):
            continue
        if (
            interface != "lo"
            and 0 <= metric < _LIMIT
            and flags & _UP
            and not flags & _REJECT
            and not network.is_multicast
        ):
            via = "" if gateway.is_unspecified else str(gateway)
            if network.prefixlen < 128:
                found.append(Route(interface=interface, network=str(network), gateway=via, metric=metric))
    return found


def _source_rules(context: Context) -> tuple[SourceRule, ...] | Missing:
    said = output(context, "ip-j-rule", ("ip", "-j", "rule", "show"))
    if isinstance(said, Missing):
        return said
    try:
        rules = json.loads(said.text or "[]")
    except (ValueError, RecursionError):
        return Missing(f"{said.origin}: not the JSON of `ip -j rule`")
    if not isinstance(rules, list):
        return Missing(f"{said.origin}: not the JSON list of `ip -j rule`")
    found = []
    for rule in rules:
        if not isinstance(rule, dict) or rule.get("src", "all") == "all":
            continue
        priority, length = rule.get("priority"), rule.get("srclen")
        source = f"{rule['src']}/{length}" if length is not None else str(rule["src"])
        if isinstance(priority, int) and 0 <= priority < _LIMIT:
            found.append(SourceRule(priority=priority, source=source, table=str(rule.get("table", ""))))
    return tuple(found)


def _arp(tree: Tree) -> tuple[ArpSetting, ...]:
    names = present(tree.names(_CONF)) or ()
    return tuple(
        ArpSetting(
            interface=name,
            arp_ignore=_in_force(tree, name, "arp_ignore"),
            arp_announce=_in_force(tree, name, "arp_announce"),
        )
        for name in names
        if name not in ("all", "default")
    )


def _in_force(tree: Tree, interface: str, setting: str) -> int | Missing:
    own = tree.number(f"{_CONF}/{interface}/{setting}")
    every = tree.number(f"{_CONF}/all/{setting}")
    if isinstance(own, Missing):
        return own
    return own if isinstance(every, Missing) else max(own, every)


SOURCE = RoutingSource()
