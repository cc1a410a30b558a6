"""Which earlier runs of a probe are comparable with one, and what sets the others apart."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_MOST_TOLD = 3


def identity(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what two documents must have in common to be compared: command, hosts, devices and settings."""
    ends = document.get("ends") or {}
    devices = [str(ends.get(name)).partition(" ")[0] for name in ("local_device", "peer_device")]
    alike = {name: document.get(name) for name in ("schema", "host", "settings")}
    return alike | {"peer_host": ends.get("peer_host"), "devices": devices}


def set_apart(wanted: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> str:
    """Return in a few words why earlier runs are not compared with a document: empty where all are.

    Of runs that differ, what the one with the fewest differences has otherwise.
    """
    here = dict(_leaves(identity(wanted)))
    failed = sum(bool(run.get("failure")) for run in runs)
    differences = []
    for run in runs:
        there = dict(_leaves(identity(run)))
        found = [
            f"{name} {there.get(name)}, here {here.get(name)}"
            for name in dict.fromkeys((*here, *there))
            if here.get(name) != there.get(name)
        ]
        if found and not run.get("failure"):
            differences.append(found)
    parts = [f"{failed} failed"] if failed else []
    if differences:
        least = min(reversed(differences), key=len)
        more = f" and {len(least) - _MOST_TOLD} more" if len(least) > _MOST_TOLD else ""
        nearest = "; ".join(least[:_MOST_TOLD]) + more
        parts.append(f"{len(differences)} made otherwise, the nearest with {nearest}")
    return ", ".join(parts)


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _leaves(part, f"{name}.{key}".removeprefix("."))
    else:
        yield name, value
