"""How an engine is set up to move KV blocks, as its command line and environment say."""

from dataclasses import dataclass
from typing import Literal

from kvdiag.model.missing import Missing
from kvdiag.model.serving import ServingProcess

Role = Literal["prefill", "decode", "both"]
Direction = Literal["pull", "push"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Connector:
    """`name` as configured ("NixlConnector"), `library` what moves the bytes ("nixl", "mooncake", "mori", "lmcache",
    "ucx", ..., "unknown"), `direction` who reads or writes: None where it cannot be told.

    `settings` are the remaining keys of its configuration as text.
    """

    name: str
    library: str
    direction: Direction | None = None
    backends: tuple[str, ...] = ()
    protocol: str | None = None
    devices: tuple[str, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()

    def setting(self, name: str) -> str | None:
        return next((value for key, value in self.settings if key == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """One serving process. `connectors` is empty where it is not set up to transfer; `problems` are configurations that
    cannot be read, each in one line. `variables` Missing where its environment cannot be seen.
    """

    process: ServingProcess
    role: Role | None
    connectors: tuple[Connector, ...]
    options: tuple[tuple[str, str], ...]
    variables: dict[str, str] | Missing
    problems: tuple[str, ...] = ()

    def option(self, *names: str) -> str | None:
        """Return the value of the last of these options on the command line ("" for a switch), None where unset."""
        return next((value for name, value in reversed(self.options) if name in names), None)

    def variable(self, name: str) -> str | Missing | None:
        """Return a variable of its environment, None where unset, Missing where the environment cannot be seen."""
        return self.variables if isinstance(self.variables, Missing) else self.variables.get(name)
