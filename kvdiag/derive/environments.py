"""The environments that decide how KV blocks move, each as far as the transports of its process read it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvdiag.derive.device_lists import selects
from kvdiag.derive.engines import setup
from kvdiag.derive.setting import group_of
from kvdiag.derive.transports import device_lists, reads
from kvdiag.model.engine import EngineSetup
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import Port
from kvdiag.model.serving import Environment, ServingProcesses
from kvdiag.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class NamedEnvironment:
    """`subject` is whose environment it is, `origin` where it was read, `group` its process's control group.

    `variables` leaves out those of transports that the process does not use; `lists` holds for each family of
    variables in use ("UCX_", "MC_", ...) the list of devices that narrows it, and is empty where the transport is not
    known.
    """

    subject: str
    origin: str
    variables: Mapping[str, str]
    group: str = ""
    lists: Mapping[str, str | None] = field(default_factory=dict)

    def lets_use(self, port: Port) -> bool:
        """Return whether a transport of this process may use a port."""
        lists = self.lists or {"": self.variables.get("UCX_NET_DEVICES")}
        return any(selects(value, port) for value in lists.values())


def environment_of(engine: EngineSetup) -> NamedEnvironment | Missing:
    """Return the environment of one engine, less what its transports do not read."""
    if isinstance(engine.variables, Missing):
        return engine.variables
    process = engine.process
    read = {name: value for name, value in engine.variables.items() if reads(engine, name)}
    return NamedEnvironment(process.name, f"/proc/{process.pid}/environ", read, group_of(process), device_lists(engine))


def environments(snapshot: Snapshot) -> tuple[NamedEnvironment, ...] | Missing:
    """Return the environments of the serving processes; where there is none, the one that kvdiag was started with.

    The environment of the shell is not that of the engine, so it is judged only before an engine runs. Variables that
    no transport of a process reads are left out.
    """
    serving = snapshot.part(ServingProcesses)
    if isinstance(serving, Missing):
        return serving
    found = []
    hidden = None
    engines = [setup(process) for process in serving.processes]
    for engine in engines:
        named = environment_of(_with_connectors(engine, engines))
        if isinstance(named, Missing):
            hidden = named
        else:
            found.append(named)
    if found:
        return tuple(found)
    if hidden is not None:
        return hidden
    own = snapshot.part(Environment)
    if isinstance(own, Missing):
        return own
    return (NamedEnvironment("environment", own.origin, {item.name: item.value for item in own.variables}),)


def _with_connectors(engine: EngineSetup, others: Sequence[EngineSetup]) -> EngineSetup:
    """Return a worker whose title replaced its command line with the connectors of the engines of its kind."""
    if engine.connectors or engine.options:
        return engine
    same = (other for other in others if other.process.engine == engine.process.engine)
    return replace(engine, connectors=tuple(connector for other in same for connector in other.connectors))
