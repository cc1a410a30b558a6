"""REG003: Mooncake registers GPU memory on the EFA cards of its rank, not on all."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.engines import transferring
from kvdiag.derive.gpu_pairs import Pair, pairs
from kvdiag.derive.rdma import active_ports, device_of, joined
from kvdiag.model.engine import EngineSetup
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing, present
from kvdiag.model.rdma import RdmaDevices
from kvdiag.model.snapshot import Snapshot

CODE = "REG003"
_FEW = 4
"""A GPU of the largest instances has two to four cards of its own."""


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    found = transferring(hosts.local, "mooncake")
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    cards = tuple(
        dict.fromkeys(port.device for port in active_ports(devices) if device_of(devices, port).driver == "efa")
    )
    if not cards:
        return NotApplicable("no EFA card with an ACTIVE port")
    if len(cards) <= _FEW:
        return NotApplicable(f"{len(cards)} EFA card(s): no more than one GPU has of its own")
    if isinstance(found, Missing):
        return NotObservable(found.missing)
    if not found:
        return NotApplicable("no engine here moves KV blocks with Mooncake")
    wide = [(setup, listed) for setup in found if len(listed := _listed(setup) or cards) > _FEW]
    if wide:
        return Failed(tuple(_finding(hosts.local, setup, listed) for setup, listed in wide))
    return Passed(joined(f"{setup.process.name}: {joined(_listed(setup))}" for setup in found))


def _listed(setup: EngineSetup) -> tuple[str, ...]:
    return tuple(name for connector in setup.connectors for name in connector.devices)


def _finding(local: Snapshot, setup: EngineSetup, listed: tuple[str, ...]) -> Finding:
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=setup.process.name,
        summary=(
            f"Mooncake registers GPU memory on {len(listed)} EFA cards: each time it costs about 260 ms for every GiB "
            "already registered, on every card"
        ),
        evidence=(
            Evidence(
                name="device list",
                value=joined(_listed(setup)) or "not set: all cards",
                source=f"/proc/{setup.process.pid}/cmdline",
                threshold="the cards of the rank's own GPU",
            ),
            Evidence(name="EFA cards", value=joined(listed), source="/sys/class/infiniband"),
        ),
        action=_action(present(pairs(local)) or ()),
        host=local.host,
        devices=listed,
    )


def _action(found: tuple[Pair, ...]) -> str:
    own: dict[str, list[str]] = {}
    for pair in found:
        if pair.is_switched:
            own.setdefault(pair.gpu.address, []).append(pair.device.name)
    if not own:
        return "give each rank a device list of the cards nearest to its GPU, and register large regions last"
    return "give each rank its own cards: " + "; ".join(f"GPU {gpu}: {','.join(names)}" for gpu, names in own.items())


CHECK = Check(code=CODE, title="GPU memory is registered on the rank's own EFA cards", run=run)
