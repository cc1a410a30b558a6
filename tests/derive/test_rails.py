import ipaddress

import pytest

from kvdiag.derive.rails import address, leads_to
from kvdiag.model.routing import Route

ROUTES = (
    Route(interface="eth0", network="0.0.0.0/0", gateway="192.0.2.1", metric=0),
    Route(interface="ens1", network="198.51.100.0/26", gateway="", metric=0),
    Route(interface="ens1", network="2001:db8:0:1::/64", gateway="", metric=256),
)


@pytest.mark.parametrize(
    ("interface", "target", "expected"),
    [
        ("ens1", "198.51.100.9", True),
        ("ens1", "198.51.100.99", False),
        ("eth0", "198.51.100.99", True),
        ("ens1", "2001:db8:0:1::9", True),
        ("eth0", "2001:db8:0:1::9", False),
    ],
)
def test_only_the_routes_of_the_interface_count(interface: str, target: str, expected: bool) -> None:
    assert leads_to(ROUTES, interface, ipaddress.ip_address(target)) is expected


def test_the_address_of_a_gid() -> None:
    assert address("::ffff:192.0.2.1") == ipaddress.IPv4Address("192.0.2.1")
    assert address("2001:db8::1") == ipaddress.IPv6Address("2001:db8::1")
