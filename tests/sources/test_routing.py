from pathlib import Path

from kvdiag.model.missing import Missing
from kvdiag.model.routing import ArpSetting, Route, Routing, SourceRule
from kvdiag.sources.base import Context
from kvdiag.sources.routing import SOURCE
from tests.trees import write_tree

IPV4 = (
    "proc/net/route = Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"
    "\\neth0\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0"
    "\\nbond0\t006433C6\t00000000\t0001\t0\t0\t0\tC0FFFFFF\t0\t0\t0"
    "\\nbond1\t006433C6\t00000000\t0000\t0\t0\t0\tC0FFFFFF\t0\t0\t0"
    "\\nodd"
)
IPV6 = (
    f"proc/net/ipv6_route = 20010db8000000010000000000000000 40 {'0' * 32} 00 {'0' * 32} 00000100 00000001 00000000"
    f" 00000001 ens1\\n{'0' * 31}1 80 {'0' * 32} 00 {'0' * 32} 00000100 00000001 00000000 00200200 lo"
)


def read(text: str, folder: Path) -> Routing | Missing:
    return SOURCE.read(Context(root=write_tree(text, folder), live=False))


def test_usable_routes_of_both_families(tmp_path: Path) -> None:
    part = read(f"{IPV4}\n{IPV6}", tmp_path)
    assert isinstance(part, Routing)
    assert part.routes == (
        Route(interface="eth0", network="0.0.0.0/0", gateway="192.0.2.1", metric=100),
        Route(interface="bond0", network="198.51.100.0/26", gateway="", metric=0),
        Route(interface="ens1", network="2001:db8:0:1::/64", gateway="", metric=256),
    )
    assert part.source_rules == Missing("/commands/ip-j-rule.txt does not exist")


def test_rules_that_look_at_the_source(tmp_path: Path) -> None:
    rules = (
        '[{"priority":0,"src":"all","table":"local"},{"priority":100,"src":"198.51.100.21","table":"101"},'
        '{"priority":101,"src":"198.51.100.64","srclen":26,"table":"102"}]'
    )
    part = read(f"{IPV4}\ncommands/ip-j-rule.txt = {rules}", tmp_path)
    assert isinstance(part, Routing)
    assert part.source_rules == (
        SourceRule(priority=100, source="198.51.100.21", table="101"),
        SourceRule(priority=101, source="198.51.100.64/26", table="102"),
    )


def test_text_that_is_not_json_hides_the_rules_only(tmp_path: Path) -> None:
    part = read(f"{IPV4}\ncommands/ip-j-rule.txt = 0: from all lookup local", tmp_path)
    assert isinstance(part, Routing)
    assert part.source_rules == Missing("/commands/ip-j-rule.txt: not the JSON of `ip -j rule`")
    assert len(part.routes) == 2 if not isinstance(part.routes, Missing) else False


def test_the_greater_arp_setting_is_in_force(tmp_path: Path) -> None:
    part = read(
        """
        proc/sys/net/ipv4/conf/all/arp_ignore = 2
        proc/sys/net/ipv4/conf/all/arp_announce = 0
        proc/sys/net/ipv4/conf/default/arp_ignore = 0
        proc/sys/net/ipv4/conf/ens1/arp_ignore = 1
        proc/sys/net/ipv4/conf/ens1/arp_announce = many
        """,
        tmp_path,
    )
    assert isinstance(part, Routing)
    why = Missing("/proc/sys/net/ipv4/conf/ens1/arp_announce holds 'many', not a number")
    assert part.arp == (ArpSetting(interface="ens1", arp_ignore=2, arp_announce=why),)
    assert part.routes == Missing("/proc/net/route does not exist")
