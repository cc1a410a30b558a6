"""How long tasks of a host have been waiting for its processors, memory or disks (PSI)."""

from dataclasses import dataclass

from kvdiag.model.missing import Missing

RESOURCES = ("cpu", "memory", "io")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """Seconds since boot in which at least one task was waiting ("some"), by resource."""

    stalled_s: dict[str, float | Missing]
