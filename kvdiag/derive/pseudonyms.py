"""Replacements for addresses, GUIDs and names that keep their kind and their relations, but not what they were.

Addresses are replaced bit by bit: each bit is flipped or not by a keyed hash of the bits before it, so that two that
share n leading bits still share exactly n (Xu et al., "Prefix-preserving IP address anonymization", 2002). Bits that
tell special ranges apart (private, link-local, …) are never flipped, and the last one always is: no address is its own
replacement. The lower 64 bits of IPv6 are replaced on their own, so that an interface keeps its identifier in every
subnet, a port's GUID is that in its GID, and EUI-64 identifiers still follow from their MAC addresses.
"""

import functools
import ipaddress
from collections.abc import Callable
from hashlib import blake2b

_RANGES_4 = ("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
             "192.168.0.0/16", "224.0.0.0/4", "240.0.0.0/4")  # fmt: skip
_RANGES_6 = ("::/8", "2000::/3", "fc00::/8", "fd00::/8", "fe80::/10", "fec0::/10", "ff00::/8")
_LOCAL_PREFIX = 0xFE80 << 48
"""fe80::/64, of every link and of InfiniBand's default subnet: it identifies nobody."""
_UNIVERSAL = 1 << 57
"""The bit of an interface identifier by which EUI-64 identifiers and GUIDs of one maker differ (RFC 4291, 2.5.1)."""
_FFFE = 0xFFFE


class Pseudonyms:
    """The same key gives the same replacements, so snapshots of several hosts taken with one key can be compared."""

    def __init__(self, key: bytes) -> None:
        self._key = key[:64]
        self._bit = functools.lru_cache(maxsize=None)(self._hashed_bit)

    def ipv4(self, address: ipaddress.IPv4Address, prefix_length: int = 32) -> ipaddress.IPv4Address:
        """Return the replacement; the network address of `prefix_length` stays one. Loopback, multicast, masks stay."""
        value = int(address)
        if address.is_loopback or address.is_unspecified or address.is_multicast or _is_mask(value):
            return address
        replaced = self._permute("4", value, 32, lambda depth, prefix: (depth, prefix) in _FROZEN_4)
        return ipaddress.IPv4Address(_masked(value, replaced, 32, prefix_length))

    def ipv6(self, address: ipaddress.IPv6Address, prefix_length: int = 128) -> ipaddress.IPv6Address:
        """Return the replacement, IPv4-mapped addresses in step with their IPv4 ones; loopback and multicast stay."""
        if address.is_loopback or address.is_unspecified or address.is_multicast:
            return address
        if address.ipv4_mapped is not None:
            inner = self.ipv4(address.ipv4_mapped, max(0, prefix_length - 96))
            return ipaddress.IPv6Address(0xFFFF << 32 | int(inner))
        high, low = int(address) >> 64, int(address) & (1 << 64) - 1
        if high != _LOCAL_PREFIX:
            high = self._permute("6", high, 64, lambda depth, prefix: (depth, prefix) in _FROZEN_6)
        replaced = high << 64 | self.guid(low)
        return ipaddress.IPv6Address(_masked(int(address), replaced, 128, prefix_length))

    def guid(self, value: int) -> int:
        """Return the replacement of a 64-bit GUID or interface identifier; all zeros and all ones stay."""
        if value in (0, (1 << 64) - 1):
            return value
        universal = value & _UNIVERSAL
        return self._permute("g", value & ~_UNIVERSAL, 64, _frozen_guid) & ~_UNIVERSAL | universal

    def mac(self, value: int) -> int:
        """Return the replacement of a 48-bit address, that of its EUI-64 identifier; all zeros and all ones stay."""
        if value in (0, (1 << 48) - 1):
            return value
        replaced = self.guid(((value >> 24) << 40 | _FFFE << 24 | value & 0xFFFFFF) ^ _UNIVERSAL) ^ _UNIVERSAL
        return (replaced >> 40) << 24 | replaced & 0xFFFFFF

    def name(self, kind: str, text: str) -> str:
        """Return `kind-` and eight hexadecimal digits; upper and lower case are one."""
        return f"{kind}-{self._digest(f'name {text.lower()}'.encode()).hex()[:8]}"

    def digits(self, text: str) -> str:
        """Return as many hexadecimal digits, for identifiers that are nothing else (UUIDs, container ids)."""
        wanted = sum(character in "0123456789abcdefABCDEF" for character in text)
        made = iter((self._digest(f"digits {text.lower()}".encode()).hex() * (wanted // 32 + 1))[:wanted])
        return "".join(next(made) if character in "0123456789abcdefABCDEF" else character for character in text)

    def _permute(self, domain: str, value: int, width: int, frozen: Callable[[int, int], bool]) -> int:
        result = 0
        for depth in range(width):
            prefix = value >> (width - depth)
            flip = depth == width - 1 or (not frozen(depth, prefix) and self._bit(domain, depth, prefix))
            result = result << 1 | (value >> (width - depth - 1) & 1) ^ flip
        return result

    def _hashed_bit(self, domain: str, depth: int, prefix: int) -> bool:
        return bool(self._digest(f"bit {domain} {depth} {prefix}".encode())[0] & 1)

    def _digest(self, text: bytes) -> bytes:
        return blake2b(text, key=self._key, digest_size=16).digest()


def _paths(ranges: tuple[str, ...], width: int) -> frozenset[tuple[int, int]]:
    """Return (depth, leading bits) of every node above the ranges: the bits that tell them apart."""
    found = set()
    for text in ranges:
        network = ipaddress.ip_network(text)
        leading = int(network.network_address) >> (network.max_prefixlen - width)
        found |= {(depth, leading >> (width - depth)) for depth in range(network.prefixlen)}
    return frozenset(found)


_FROZEN_4 = _paths(_RANGES_4, 32)
_FROZEN_6 = _paths(_RANGES_6, 64)


def _frozen_guid(depth: int, prefix: int) -> bool:
    """Keep the universal and the group bit, and ff:fe in the middle, which makes an identifier an EUI-64 one."""
    if depth in (6, 7):
        return True
    inner = depth - 24
    return 0 <= inner < 16 and prefix & (1 << inner) - 1 == _FFFE >> (16 - inner)


def _is_mask(value: int) -> bool:
    """Return whether a 32-bit value is a netmask: ones, then zeros, at least eight ones."""
    inverted = value ^ 0xFFFFFFFF
    return inverted < 1 << 24 and inverted & (inverted + 1) == 0


def _masked(original: int, replaced: int, width: int, prefix_length: int) -> int:
    host = (1 << max(0, width - prefix_length)) - 1
    return replaced & ~host if original & host == 0 else replaced
