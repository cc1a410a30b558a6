"""Versions of the kernel modules that move KV blocks."""

from dataclasses import dataclass

from kvdiag.model.missing import Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverVersions:
    """By module name, for those that tell one (drivers of the kernel's own tree often do not)."""

    versions: dict[str, str]

    def of(self, module: str) -> str | Missing:
        """Return a module's version, or Missing with the reason."""
        return self.versions.get(module, Missing(f"/sys/module/{module}/version does not exist"))
