"""A snapshot without what identifies its owner: addresses, GUIDs, host names and secrets replaced, all else kept.

Every part is walked in its JSON form, so a new source needs nothing here. A check sees the same relations as before
(kvdiag.derive.pseudonyms), and gives the same verdict.
"""

import ipaddress
import json
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import msgspec

from kvdiag.derive.host_names import ORDINARY, host_names
from kvdiag.derive.pseudonyms import Pseudonyms
from kvdiag.model.missing import Missing
from kvdiag.model.snapshot import Snapshot

_SECRET = re.compile(
    r"(?i)((?:api[-_]?key|(?<![a-z])token|secret|passw(?:or)?d|credential|authorization)[\"']?\s*[:=]\s*[\"']?"
    r"(?:bearer\s+)?|--[\w-]*(?:api-?key|token|secret|passw(?:or)?d)\s+)([^\s\"',;}\]]+)|\b(hf_\w{16,}|sk-[\w-]{16,}|gh[pousr]_\w{20,}|nvapi-[\w-]{16,}|"
    r"eyJ[\w-]{8,}\.[\w-]+\.[\w-]+)"
)
_UUID = r"[0-9A-Fa-f]{8}(?P<dash>[-_])(?:[0-9A-Fa-f]{4}(?P=dash)){3}[0-9A-Fa-f]{12}"
_TOKEN = re.compile(
    rf"(?P<uuid>{_UUID})"
    r"|(?<![0-9A-Za-z_.])(?P<colons>[0-9A-Fa-f]*:[0-9A-Fa-f:.]*[0-9A-Fa-f:])(?P<colons_length>/\d{1,3}\b)?(?![0-9A-Za-z_])"
    r"|(?<![\w.])(?P<dots>\d{1,3}(?:\.\d{1,3}){3})(?P<dots_length>/\d{1,2}\b)?(?![\w]|\.\d)"
    r"|(?<![0-9A-Za-z_])(?P<guid>(?:0x|(?=\d*[A-Fa-f]))[0-9A-Fa-f]{16})(?![0-9A-Za-z_])"
    r"|(?<![0-9A-Fa-f])(?P<digits>[0-9A-Fa-f]{32,128})(?![0-9A-Fa-f])"
)
_IDENTIFIER = re.compile(rf"{_UUID}|(?<![0-9A-Fa-f])[0-9A-Fa-f]{{32,128}}(?![0-9A-Fa-f])")
_COMPARED = ("cluster_uuid",)
"""Fields with an identifier that checks compare between hosts: whether two are in one NVLink domain."""
_VERSION_BEFORE = re.compile(r"(?i)(version|release|firmware|\bver|\bfw|\bv)[\w:=\s\"'.-]{0,3}$")
_VERSION_FIELD = re.compile(r"(?i)(^|_)(fw|ver|version|release|firmware)($|_)")
_WORDS = frozenset({"engine", "driver", "drivers", "modules", "libraries", "type", "link_layer", "state", "phys_state",
                    "operstate", "name", "device", "netdev", "uverbs"})  # fmt: skip
"""Fields of fixed words and kernel names: a host named like one of these (`nixl`) must not change them."""
_CLOUD_NAME = re.compile(r"(?<![\w-])ip-\d{1,3}(?:-\d{1,3}){3}(?:\.[A-Za-z0-9.-]*[A-Za-z0-9])?")
_HOME = re.compile(r"(/home/|/Users/)([^/\s:\"']+)")
_PREFIX_FIELDS = ("prefix_length", "prefix_len", "prefixlen", "prefix")
_NETWORK_FIELDS = ("destination", "dst", "network", "subnet")


class Redactor:
    """Replaces in texts; `names` are the host names to look for, whole words in any case. Without `addresses`, those,
    GUIDs and host names stay.
    """

    def __init__(self, pseudonyms: Pseudonyms, names: frozenset[str], *, addresses: bool = True) -> None:
        self._pseudonyms = pseudonyms
        self._addresses = addresses
        listed = sorted(names, key=lambda name: (-len(name), name))
        self._names = (
            re.compile(rf"(?i)(?<![A-Za-z0-9])(?:{'|'.join(map(re.escape, listed))})(?![A-Za-z0-9])")
            if listed
            else re.compile(r"(?!)")
        )

    def text(self, text: str, *, version: bool = False, words: bool = False) -> str:
        """Return a text with everything replaced; `version` keeps dotted numbers, `words` keeps names."""
        pseudonyms = self._pseudonyms
        text = _SECRET.sub(lambda match: (match[1] or "") + _secret(pseudonyms, match[2] or match[3]), text)
        if not self._addresses:
            text = _HOME.sub(lambda match: match[1] + pseudonyms.name("user", match[2]), text)
            return _IDENTIFIER.sub(lambda match: pseudonyms.digits(match[0]), text)
        if not words:
            text = _HOME.sub(lambda match: match[1] + pseudonyms.name("user", match[2]), text)
            text = _CLOUD_NAME.sub(lambda match: self.host(match[0]), text)
            text = self._names.sub(lambda match: self.host(match[0]), text)
        return _TOKEN.sub(lambda match: self._token(match, version=version), text)

    def tree(self, value: Any, field: str = "") -> Any:
        """Return a JSON value with every text in it replaced."""
        if isinstance(value, str):
            if field in _COMPARED and not self._addresses:
                return value
            return self.text(value, version=_VERSION_FIELD.search(field) is not None, words=field in _WORDS)
        if isinstance(value, list):
            return [self.tree(item, field) for item in value]
        if isinstance(value, dict):
            length = next((value[name] for name in _PREFIX_FIELDS if isinstance(value.get(name), int)), None)
            return {
                self.text(name, version=True, words=True): self._network(item, length)
                if length is not None and name in _NETWORK_FIELDS and isinstance(item, str)
                else self.tree(item, name)
                for name, item in value.items()
            }
        return value

    def _network(self, address: str, length: int) -> str:
        return self.text(f"{address}/{length}").removesuffix(f"/{length}")

    def host(self, name: str) -> str:
        """Return the replacement of a name, label by label: a short name still starts the long one."""
        return ".".join(
            label if label.lower() in ORDINARY else self._pseudonyms.name("host", label) for label in name.split(".")
        )

    def _token(self, match: re.Match[str], *, version: bool) -> str:
        kind = match.lastgroup or ""
        if kind in ("uuid", "digits"):
            return self._pseudonyms.digits(match[0])
        if kind == "guid":
            digits = match["guid"].removeprefix("0x")
            return match[0][: -len(digits)] + f"{self._pseudonyms.guid(int(digits, 16)):016x}"
        if match["dots"]:
            if version or _VERSION_BEFORE.search(match.string[: match.start()]):
                return match[0]
            return self._ipv4(match["dots"], match["dots_length"] or "") or match[0]
        return self._colons(match["colons"], match["colons_length"] or "")

    def _ipv4(self, text: str, length: str) -> str | None:
        try:
            address = ipaddress.IPv4Address(text)
        except ValueError:
            return None
        return f"{self._pseudonyms.ipv4(address, int(length[1:] or 32))}{length}"

    def _colons(self, text: str, length: str) -> str:
        """Replace an IPv6 address, a GUID in four groups, or a hardware address of 6, 8 or 20 bytes."""
        body = text if text.endswith("::") else text.rstrip(":.")
        rest = text[len(body) :] + length
        groups = body.split(":")
        sizes = {len(group) for group in groups}
        try:
            address = ipaddress.IPv6Address(body)
        except ValueError:
            if "." in body:
                return text + length
            if sizes == {4} and len(groups) == 4:
                return _grouped(self._pseudonyms.guid(int(body.replace(":", ""), 16)), 16, 4) + rest
            if sizes == {2} and len(groups) == 6:
                return _grouped(self._pseudonyms.mac(int(body.replace(":", ""), 16)), 12, 2) + rest
            if sizes == {2} and len(groups) == 8:
                return _grouped(self._pseudonyms.guid(int(body.replace(":", ""), 16)), 16, 2) + rest
            if sizes == {2} and len(groups) == 20:  # IPoIB: a queue pair number, then a GID
                gid = ipaddress.IPv6Address(bytes.fromhex("".join(groups[4:])))
                return ":".join(groups[:4]) + ":" + _grouped(int(self._pseudonyms.ipv6(gid)), 32, 2) + rest
            return text + length
        replaced = self._pseudonyms.ipv6(address, int(length[1:]) if length else 128)
        if body == address.exploded:
            return replaced.exploded + rest
        return (f"::ffff:{replaced.ipv4_mapped}" if replaced.ipv4_mapped else str(replaced)) + rest


def redactor_of(snapshots: Iterable[Snapshot], key: bytes) -> Redactor:
    """Return what replaces in texts about hosts as `redact` does in their snapshots."""
    names: frozenset[str] = frozenset()
    for snapshot in snapshots:
        names |= host_names(snapshot.host, map(_json_form, snapshot.parts.values()))
    return Redactor(Pseudonyms(key), names)


def redact(snapshot: Snapshot, key: bytes) -> Snapshot:
    """Return the snapshot with everything replaced under a key; a part that has no JSON form becomes Missing."""
    redactor = redactor_of([snapshot], key)
    return replace(_redacted(snapshot, redactor), host=redactor.host(snapshot.host))


def without_secrets(snapshot: Snapshot, key: bytes) -> Snapshot:
    """Return the snapshot for a peer that is to be compared with it: secrets, user names, UUIDs and container ids are
    replaced under a key. Addresses, GIDs, GUIDs and host names stay: they are what the peer connects to and compares.
    """
    return _redacted(snapshot, Redactor(Pseudonyms(key), frozenset(), addresses=False))


def _redacted(snapshot: Snapshot, redactor: Redactor) -> Snapshot:
    parts: dict[type[object], object] = {}
    for part_type, value in snapshot.parts.items():
        if isinstance(value, Missing):
            parts[part_type] = Missing(redactor.text(value.missing))
            continue
        try:
            parts[part_type] = msgspec.convert(redactor.tree(_json_form(value)), type=part_type)
        except msgspec.ValidationError as error:
            parts[part_type] = Missing(f"cannot be saved: {error}")
    return replace(snapshot, parts=parts)


def _json_form(value: object) -> Any:
    try:
        return json.loads(msgspec.json.encode(value))
    except (TypeError, ValueError):
        return None


def _secret(pseudonyms: Pseudonyms, text: str) -> str:
    return text if set(text) == {"*"} else pseudonyms.name("secret", text)


def _grouped(value: int, digits: int, size: int) -> str:
    text = f"{value:0{digits}x}"
    return ":".join(text[start : start + size] for start in range(0, digits, size))
