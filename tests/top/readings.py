"""Readings of exporters for the tests, written as the exposition's own lines."""

from collections.abc import Mapping

from kvdiag.sources.exposition import Reading, parsed
from kvdiag.top.names import WANTED
from kvdiag.top.tracks import Track

KINDS = ("_bucket", "_sum", "_count")


def reading(time_s: float, *lines: str, health: Mapping[str, object] | None = None) -> Reading:
    """Return a reading of series lines; kinds are told by the names, as the exporter's own are."""
    types: dict[str, str] = {}
    for line in lines:
        name = line.partition("{")[0].partition(" ")[0]
        base = next((name.removesuffix(end) for end in KINDS if name.endswith(end)), "")
        kind = "histogram" if base else "counter" if name.endswith("_total") else "gauge"
        types[base or name] = kind
    text = "\n".join(
        f"# TYPE {name} {kind}\n" + "\n".join(one for one in lines if one.partition("{")[0].startswith(name))
        for name, kind in types.items()
    )
    points, kinds = parsed(text + "\n", WANTED)
    return Reading(monotonic_s=time_s, points=points, kinds=kinds, health=health or {})


def track(*readings: Reading, window_s: float = 30.0) -> Track:
    """Return the track of readings in order."""
    found = Track(window_s)
    for one in readings:
        found.add(one)
    return found


def histogram(name: str, labels: str, counts: Mapping[str, float], total: float) -> list[str]:
    """Return a histogram's lines from its cumulative counts."""
    found = [f'{name}_bucket{{{labels},le="{bound}"}} {count}' for bound, count in counts.items()]
    return [*found, f"{name}_sum{{{labels}}} {total}", f"{name}_count{{{labels}}} {list(counts.values())[-1]}"]
