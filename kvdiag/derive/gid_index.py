"""GID indexes that the environment fixes, the ports they apply to, and what to set instead."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from kvdiag.derive.device_lists import selects
from kvdiag.derive.environments import NamedEnvironment
from kvdiag.derive.rdma import active_ports, device_of, is_roce, joined, routable_v2
from kvdiag.derive.setting import set_variable, unset_variable
from kvdiag.model.finding import Evidence
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import Port, RdmaDevices

VARIABLES = {
    "MC_GID_INDEX": None,
    "MORI_IB_GID_INDEX": "MORI_RDMA_DEVICES",
    "NCCL_IB_GID_INDEX": "NCCL_IB_HCA",
    "UCX_IB_GID_INDEX": "UCX_NET_DEVICES",
}
"""Each variable with the one that restricts the devices it applies to where the transport in use is not known."""
_AUTOMATIC = ("", "auto", "-1")


@dataclass(frozen=True, slots=True)
class GidSetting:
    """`devices` is the value of the variable that restricts it, None where there is none."""

    variable: str
    value: str
    devices: str | None

    @property
    def index(self) -> int | None:
        """The index as a number, None where the value is none (a GID table has far fewer than 10^6 slots)."""
        return int(self.value) if self.value.isdecimal() and len(self.value) <= 6 else None

    def ports(self, devices: RdmaDevices) -> tuple[Port, ...]:
        """Return the ACTIVE RoCE ports that it applies to and whose GIDs can be seen."""
        return tuple(
            port for port in roce_ports(devices) if selects(self.devices, port) and not isinstance(port.gids, Missing)
        )


def roce_ports(devices: RdmaDevices) -> tuple[Port, ...]:
    """Return the ACTIVE RoCE ports, in order."""
    return tuple(port for port in active_ports(devices) if is_roce(device_of(devices, port), port))


def gid_settings(found: Sequence[NamedEnvironment]) -> dict[GidSetting, list[NamedEnvironment]]:
    """Return each index that is fixed, with the environments that fix it."""
    settings = defaultdict(list)
    for environment in found:
        for variable, restricting in VARIABLES.items():
            value = environment.variables.get(variable, "").strip()
            if value not in _AUTOMATIC:
                devices = environment.lists.get(variable.partition("_")[0] + "_", environment.lists.get("MC_"))
                if not environment.lists and restricting:
                    devices = environment.variables.get(restricting)
                settings[GidSetting(variable, value, devices)].append(environment)
    return dict(settings)


def set_where(setting: GidSetting, owners: Sequence[NamedEnvironment]) -> Evidence:
    """Return the evidence that the index is set."""
    more = f" and {len(owners) - 1} more" if len(owners) > 1 else ""
    return Evidence(name=setting.variable, value=setting.value, source=owners[0].origin + more)


def advice(setting: GidSetting, ports: Sequence[Port], group: str) -> str:
    """Return what to set so that every port uses its best RoCE v2 GID; `group` is the process's control group."""
    best = {port.name: routable_v2(port)[0].index for port in ports if routable_v2(port)}
    unset = unset_variable(group, setting.variable)
    if not best:
        return f"give the interface an IP address (kvdiag explain GID003), then: {unset}"
    if len(best) == len(ports) and len(set(best.values())) == 1:
        return set_variable(group, setting.variable, next(iter(best.values())))
    slots = joined(f"{name} {index}" for name, index in best.items())
    return f"the index differs by port ({slots}), so it must be chosen automatically: {unset}"
