"""Replacements keep kinds and relations: stated as laws, tried on many addresses."""

import ipaddress
from ipaddress import IPv4Address, IPv6Address

from hypothesis import assume, given
from hypothesis import strategies as st

from kvdiag.derive.pseudonyms import Pseudonyms

PSEUDONYMS = Pseudonyms(b"a key for tests")
IPV4 = st.ip_addresses(v=4)
IPV6 = st.ip_addresses(v=6) | st.integers(1, (1 << 64) - 1).map(lambda low: IPv6Address(0xFE80 << 112 | low))
KINDS = ("is_loopback", "is_link_local", "is_unspecified", "is_multicast")


def shared_bits(one: int, other: int, width: int) -> int:
    return width - (one ^ other).bit_length()


def is_private(address: IPv4Address) -> bool:
    return any(
        address in ipaddress.ip_network(text)
        for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")
    )


@given(IPV4, IPV4)
def test_two_ipv4_addresses_share_as_many_leading_bits_as_before(one: IPv4Address, other: IPv4Address) -> None:
    for address in (one, other):
        assume(PSEUDONYMS.ipv4(address) != address)
    first, second = (int(PSEUDONYMS.ipv4(address)) for address in (one, other))
    assert shared_bits(first, second, 32) == shared_bits(int(one), int(other), 32)


@given(IPV4)
def test_an_ipv4_address_changes_but_not_its_kind(address: IPv4Address) -> None:
    replaced = PSEUDONYMS.ipv4(address)
    kept = address.is_loopback or address.is_unspecified or address.is_multicast or int(address) >= 0xFF000000
    assert kept or replaced != address
    assert is_private(replaced) == is_private(address)
    for kind in KINDS:
        assert getattr(replaced, kind) == getattr(address, kind), kind


@given(IPV6)
def test_an_ipv6_address_changes_but_not_its_kind(address: IPv6Address) -> None:
    # Mapped ones go with their IPv4 address; identifiers of zeros and ones alone are nobody's.
    assume(address.ipv4_mapped is None and int(address) & (1 << 64) - 1 not in (0, (1 << 64) - 1))
    replaced = PSEUDONYMS.ipv6(address)
    assert replaced != address or address.is_loopback or address.is_unspecified or address.is_multicast
    assert (replaced.ipv4_mapped is None) == (address.ipv4_mapped is None)
    assert (replaced in ipaddress.ip_network("fc00::/7")) == (address in ipaddress.ip_network("fc00::/7"))
    for kind in KINDS:
        assert getattr(replaced, kind) == getattr(address, kind), kind


@given(st.integers(0, (1 << 128) - 1), st.integers(0, 127))
def test_two_ipv6_addresses_share_their_network_as_before(value: int, bit: int) -> None:
    one, other = IPv6Address(value), IPv6Address(value ^ (1 << (127 - bit)))
    for address in (one, other):
        assume(address.ipv4_mapped is None and not address.is_multicast and not address.is_loopback)
        assume(int(address) >> 64 != 0xFE80 << 48)
        assume(int(address) & (1 << 64) - 1 not in (0, (1 << 64) - 1))
    # The universal bit of an identifier is left out of what the bits below it depend on.
    assume(bit != 70)
    first, second = (int(PSEUDONYMS.ipv6(address)) for address in (one, other))
    assert shared_bits(first, second, 128) == bit


@given(IPV4, st.integers(8, 32))
def test_a_network_stays_one_and_holds_its_hosts(host: IPv4Address, length: int) -> None:
    network = ipaddress.IPv4Network((host, length), strict=False)
    assume(not host.is_loopback and not host.is_multicast and not host.is_unspecified and int(host) < 0xFF000000)
    assume(not network.network_address.is_unspecified)
    replaced = ipaddress.ip_network((PSEUDONYMS.ipv4(network.network_address, length), length))
    assert PSEUDONYMS.ipv4(host) in replaced


@given(IPV4)
def test_a_mapped_address_goes_with_its_ipv4_one(address: IPv4Address) -> None:
    assert PSEUDONYMS.ipv6(IPv6Address(0xFFFF << 32 | int(address))).ipv4_mapped == PSEUDONYMS.ipv4(address)


@given(st.integers(1, (1 << 64) - 2), st.integers(0, (1 << 63) - 1))
def test_a_port_s_guid_is_that_in_its_gids(guid: int, prefix: int) -> None:
    for high in (0xFE80 << 48, prefix):
        gid = IPv6Address(high << 64 | guid)
        assume(gid.ipv4_mapped is None and not gid.is_multicast and not gid.is_loopback)
        assert int(PSEUDONYMS.ipv6(gid)) & (1 << 64) - 1 == PSEUDONYMS.guid(guid)


def eui64(mac: int) -> int:
    return ((mac >> 24) << 40 | 0xFFFE << 24 | mac & 0xFFFFFF) ^ 1 << 57


@given(st.integers(1, (1 << 48) - 2))
def test_an_eui64_identifier_still_follows_from_its_mac(mac: int) -> None:
    assume(eui64(mac))
    replaced = PSEUDONYMS.mac(mac)
    assert replaced != mac
    assert eui64(replaced) == PSEUDONYMS.guid(eui64(mac))


def test_another_key_replaces_otherwise_and_the_same_key_alike() -> None:
    address = IPv4Address("198.51.100.7")
    assert PSEUDONYMS.ipv4(address) == Pseudonyms(b"a key for tests").ipv4(address)
    assert len({Pseudonyms(bytes([number])).ipv4(address) for number in range(20)}) > 15
