"""Who on a host moves KV blocks through UCX, and with which variables."""

from kvdiag.derive.engines import setups
from kvdiag.derive.environments import NamedEnvironment, environments
from kvdiag.model.engine import EngineSetup
from kvdiag.model.missing import Missing, present
from kvdiag.model.snapshot import Snapshot


def uses_ucx(setup: EngineSetup) -> bool:
    """Return whether one of an engine's connectors is known to go through UCX."""
    return any(
        connector.library == "ucx"
        or (connector.library == "nixl" and (not connector.backends or "UCX" in connector.backends))
        for connector in setup.connectors
    )


def ucx_environments(snapshot: Snapshot) -> tuple[NamedEnvironment, ...] | Missing:
    """Return the environments of the engines that use UCX; before any engine runs, kvdiag's own.

    Empty where engines run and none of them is known to use UCX.
    """
    found = present(setups(snapshot)) or ()
    if not found:
        return environments(snapshot)
    users = [setup for setup in found if uses_ucx(setup)]
    named = [
        NamedEnvironment(setup.process.name, f"/proc/{setup.process.pid}/environ", setup.variables)
        for setup in users
        if not isinstance(setup.variables, Missing)
    ]
    if users and not named:
        return next(setup.variables for setup in users if isinstance(setup.variables, Missing))
    return tuple(named)


def engine_runs(snapshot: Snapshot) -> bool:
    """Return whether a serving process was seen."""
    return bool(present(setups(snapshot)))
