"""Which RDMA port each GPU's rank should use."""

from collections.abc import Sequence

from kvdiag.derive.gpu_distance import between
from kvdiag.model.engine import EngineSetup
from kvdiag.model.missing import Missing, present
from kvdiag.model.pci_topology import PciTopology
from kvdiag.model.rdma import Port, RdmaDevices
from kvdiag.model.snapshot import Snapshot

_WIDTH = ("--tensor-parallel-size", "--tp-size", "--tp")
_REPLICAS = ("--data-parallel-size-local", "--data-parallel-size", "--dp-size", "--dp")
_SHORT = {"-tp": "--tp", "-dp": "--dp"}


def ranks_of(engines: Sequence[EngineSetup]) -> int:
    """Return how many GPUs the engines' command lines ask for (1 each where nothing is said), or how many workers run.

    vLLM names its workers `VLLM::Worker_TP0`; SGLang `sglang::scheduler_TP0`.
    """
    workers = sum(_is_worker(engine.process.command) for engine in engines)
    asked = sum(
        _number(engine, _WIDTH) * _number(engine, _REPLICAS)
        for engine in engines
        if not engine.process.command[:1] or "::" not in engine.process.command[0]
    )
    return max(workers, asked)


def _is_worker(command: tuple[str, ...]) -> bool:
    title = command[0] if command else ""
    return title.startswith(("VLLM::Worker", "sglang::scheduler"))


def _number(engine: EngineSetup, names: tuple[str, ...]) -> int:
    value = engine.option(*names)
    command = engine.process.command
    for index, word in enumerate(command[:-1]):
        if _SHORT.get(word) in names:
            value = command[index + 1]
    return int(value) if value and value.isdecimal() and 0 < len(value) <= 4 else 1


def nic_map(snapshot: Snapshot, ports: Sequence[Port]) -> tuple[tuple[int, Port], ...]:
    """Return for each GPU, by its number in PCI order, the nearest of the ports; ports that are as near are dealt out
    in turn. Empty where the topology is not known.
    """
    topology = snapshot.part(PciTopology)
    devices = present(snapshot.part(RdmaDevices))
    if isinstance(topology, Missing) or devices is None:
        return ()
    places = {
        device.name: place for device in devices.devices if (place := topology.at(device.pci_address)) is not None
    }
    used: dict[str, int] = {}
    found = []
    for number, gpu in enumerate(topology.gpus):
        reach = [
            (distance, used.get(port.name, 0), position, port)
            for position, port in enumerate(ports)
            if port.device in places and not isinstance(distance := between(places[port.device], gpu), Missing)
        ]
        if not reach:
            return ()
        best = min(reach, key=lambda item: item[:3])[3]
        used[best.name] = used.get(best.name, 0) + 1
        found.append((number, best))
    return tuple(found)
