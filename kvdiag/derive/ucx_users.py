"""Who on a host moves KV blocks through UCX, and with which variables."""

from kvdiag.derive.engines import setups
from kvdiag.derive.environments import NamedEnvironment, environment_of, environments
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
    each = [environment_of(setup) for setup in users]
    named = tuple(item for item in each if not isinstance(item, Missing))
    hidden = next((item for item in each if isinstance(item, Missing)), None)
    return hidden if hidden is not None and not named else named


def engine_runs(snapshot: Snapshot) -> bool:
    """Return whether a serving process was seen."""
    return bool(present(setups(snapshot)))
