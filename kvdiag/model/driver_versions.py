"""Versions of the kernel modules that move KV blocks."""

from dataclasses import dataclass

from kvdiag.model.missing import Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverVersion:
    module: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverVersions:
    """The modules that tell a version, by name (drivers of the kernel's own tree often do not)."""

    drivers: tuple[DriverVersion, ...]

    def of(self, module: str) -> str | Missing:
        """Return a module's version, or Missing with the reason."""
        for driver in self.drivers:
            if driver.module == module:
                return driver.version
        return Missing(f"/sys/module/{module}/version does not exist")
