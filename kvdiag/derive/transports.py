"""Which variables and which list of devices the transports of an engine read.

UCX reads UCX_* (ucs/config), Mooncake MC_* (transfer_engine config.cpp) and MOONCAKE_* (its store), MORI MORI_*, NCCL
NCCL_*; none reads those of another, but that Mooncake takes NCCL_IB_GID_INDEX where MC_GID_INDEX is unset (config.cpp).
"""

from kvdiag.model.engine import Connector, EngineSetup

_FAMILIES = ("UCX_", "MC_", "MOONCAKE_", "MORI_", "NCCL_")
_OF_LIBRARY = {
    "ucx": ("UCX_",),
    "mooncake": ("MC_", "MOONCAKE_"),
    "mori": ("MORI_",),
    "nccl": ("NCCL_",),
}
_OF_NIXL_BACKEND = {"UCX": ("UCX_",), "UCX_MO": ("UCX_",), "Mooncake": ("MC_",), "LIBFABRIC": ()}
_LISTS = {"UCX_": "UCX_NET_DEVICES", "MORI_": "MORI_RDMA_DEVICES", "NCCL_": "NCCL_IB_HCA"}
_STORES = ("mooncake", "MooncakeStoreConnector")
"""Of Mooncake's users those that take MOONCAKE_DEVICE; SGLang has a flag, vLLM's MooncakeConnector takes every card."""


def families(setup: EngineSetup) -> frozenset[str] | None:
    """Return the prefixes of the variables that an engine's transports read.

    None where one of them is not known, or no connector is: every variable may count then.
    """
    found = [_families(connector) for connector in setup.connectors]
    if not found or any(item is None for item in found):
        return None
    return frozenset(name for item in found for name in item or ())


def _families(connector: Connector) -> tuple[str, ...] | None:
    if connector.library != "nixl":
        return _OF_LIBRARY.get(connector.library)
    named: list[str] = []
    for backend in connector.backends or ("UCX",):
        known = _OF_NIXL_BACKEND.get(backend)
        if known is None:
            return None
        named += known
    return tuple(named)


def reads(setup: EngineSetup, variable: str) -> bool:
    """Return whether an engine's transports read a variable, or may; what is no transport's is always read."""
    family = next((prefix for prefix in _FAMILIES if variable.startswith(prefix)), None)
    known = families(setup)
    if variable == "NCCL_IB_GID_INDEX" and known is not None and "MC_" in known:
        return setup.variable("MC_GID_INDEX") is None
    return family is None or known is None or family in known


def device_lists(setup: EngineSetup) -> dict[str, str | None]:
    """Return for each family of variables that is read the list of devices in effect, None where every device is.

    Empty where it is not known which transport the engine uses.
    """
    if families(setup) is None:
        return {}
    variables = setup.variables if isinstance(setup.variables, dict) else {}
    found: dict[str, str | None] = {}
    for connector in setup.connectors:
        for family in _families(connector) or ():
            value = variables.get(_LISTS.get(family, ""))
            if family == "MC_":
                value = variables.get("MOONCAKE_DEVICE") if connector.name in _STORES else None
            # SGLang also takes a JSON map, or a file of one, here.
            if connector.devices and not any(letter in "".join(connector.devices) for letter in '{}/"'):
                value = ",".join(connector.devices)
            if family != "MOONCAKE_":
                found[family] = value
    return found
