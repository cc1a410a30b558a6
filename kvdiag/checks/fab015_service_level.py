"""FAB015: on InfiniBand, Mooncake's transfers have a service level of their own."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.engines import transferring
from kvdiag.derive.rdma import active_ports, joined
from kvdiag.derive.setting import group_of, set_variable
from kvdiag.model.engine import EngineSetup
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import RdmaDevices

CODE = "FAB015"
_OURS, _OTHERS = "MC_IB_SL", "NCCL_IB_SL"
_DEFAULT = "0"
"""Of both: Mooncake before MC_IB_SL always used 0, and 0 is NCCL_IB_SL's default."""


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    ports = [port for port in active_ports(devices) if port.link_layer == "InfiniBand"]
    if not ports:
        return NotApplicable("no ACTIVE InfiniBand port")
    found = transferring(hosts.local, "mooncake")
    if isinstance(found, Missing):
        return NotObservable(found.missing)
    if not found:
        return NotApplicable("no process that transfers with Mooncake")
    hidden = [item.variables for item in found if isinstance(item.variables, Missing)]
    if hidden:
        return NotObservable(hidden[0].missing)
    shared = [item for item in found if _level(item, _OURS) == _level(item, _OTHERS)]
    if shared:
        return Failed(tuple(_finding(item, hosts.local.host) for item in shared))
    return Passed(joined(f"{item.process.name}: {_OURS}={_level(item, _OURS)}" for item in found))


def _level(setup: EngineSetup, name: str) -> str:
    value = setup.variable(name)
    return value if isinstance(value, str) and value else _DEFAULT


def _finding(setup: EngineSetup, host: str) -> Finding:
    level = _level(setup, _OURS)
    return Finding(
        code=CODE,
        severity=Severity.INFO,
        subject=setup.process.name,
        summary=(
            f"{setup.process.name} sends KV blocks in service level {level}, which collectives (expert-parallel "
            "all-to-all) use too: one waits behind the other"
        ),
        evidence=tuple(
            Evidence(
                name=name,
                value=str(setup.variable(name) or f"unset (default {_DEFAULT})"),
                source=f"/proc/{setup.process.pid}/environ",
                threshold=f"another than {other}" if name == _OURS else None,
            )
            for name, other in ((_OURS, _OTHERS), (_OTHERS, _OURS))
        ),
        action=(
            f"if both run at once here: ask whoever runs the subnet manager for a service level with a virtual lane of "
            f"its own, then: {set_variable(group_of(setup.process), _OURS, 'THAT-LEVEL')} (a Mooncake that knows it)"
        ),
        host=host,
    )


CHECK = Check(code=CODE, title="KV transfers have a service level of their own", run=run)
