"""The host names in a snapshot: the host's own, and whatever stands where a host is expected."""

import ipaddress
import re
from collections.abc import Iterable, Iterator
from typing import Any

_HOST_FIELD = re.compile(r"(?i)(^|[_-])(host|hostname|ip|addr|address|server|url|endpoint|node|master|peer)s?$")
_URL_HOST = re.compile(r"://(?:[^/@\s]*@)?([A-Za-z0-9][A-Za-z0-9_.-]*)")
_JSON_PAIR = re.compile(r"[\"']([\w-]+)[\"']\s*:\s*[\"']([^\"']+)[\"']")
_NAME = re.compile(r"(?=[^.]*[A-Za-z]|[^.]+\.[A-Za-z])[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
ORDINARY = frozenset(
    {"auto", "cluster", "default", "false", "http", "https", "internal", "local", "localdomain", "localhost", "none"}
    | {"null", "rdma", "svc", "tcp", "true"}
)
"""Words that stand where a host may, and labels that every cluster has."""


def host_names(host: str, forms: Iterable[Any]) -> frozenset[str]:
    """Return the names to replace: the host's own, and those given where a host is expected."""
    found = {host, *(name for form in forms for name in _named(form, ""))}
    for name in tuple(found):
        labels = name.split(".")
        found |= {labels[0], ".".join(labels[1:])}
    return frozenset(
        name
        for name in found
        if len(name) > 1
        and _NAME.fullmatch(name)
        and name.lower() not in ORDINARY
        and not all(label.lower() in ORDINARY for label in name.split("."))
        and not _is_address(name)
    )


def _named(value: Any, field: str) -> Iterator[str]:
    if isinstance(value, str):
        if _HOST_FIELD.search(field):
            yield from (part.strip().rpartition(":")[0] or part.strip() for part in value.split(","))
        yield from _URL_HOST.findall(value)
        yield from (item[1] for item in _JSON_PAIR.findall(value) if _HOST_FIELD.search(item[0]))
    elif isinstance(value, list):
        for before, item in zip(["", *value], value, strict=False):
            yield from _named(item, field)
            if isinstance(item, str):  # a command line: --host NAME or --host=NAME
                flag, equals, given = item.partition("=")
                if equals and flag.startswith("-"):
                    yield from _named(given, flag)
                elif isinstance(before, str) and before.startswith("-") and "=" not in before:
                    yield from _named(item, before)
    elif isinstance(value, dict):
        named = value.get("name")
        for name, item in value.items():
            # A variable of an environment is {"name": ..., "value": ...}.
            yield from _named(item, named if name == "value" and isinstance(named, str) else name)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
