"""vLLM's statistics of a KV connector, as transfers; imports nothing of vLLM, which loads plugins in every process."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from kvdiag.model.record import HandleTransfer, Key

VARIABLE = "KVDIAG_VLLM_RECORDS"
NODE_VARIABLE = "KVDIAG_NODE"
LINK_VARIABLE = "KVDIAG_VLLM_LINK"
"""1: the worker tells the transfers, each with its request where that can be known (plugins/vllm_link.py)."""
LISTS = ("transfer_duration", "post_duration", "bytes_transferred", "num_descriptors")
"""What a connector says of each handle (nixl/stats.py); Mooncake's has no post."""
_PUSHING = ("Push", "Mooncake")


class TransferReader:
    """Makes handles of a connector's lists; `direction` is push, pull, or None where the connector does not tell."""

    def __init__(self, transfer_config: Any) -> None:
        self.connector = str(getattr(transfer_config, "kv_connector", None) or "")
        extra = getattr(transfer_config, "kv_connector_extra_config", None) or {}
        self.direction = direction_of(self.connector, extra)
        self.node = os.environ.get(NODE_VARIABLE) or None  # else the exporter knows whose file it follows

    def children(self, stats: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
        """Yield each connector's own statistics with its name: MultiConnector nests those of its children."""
        nested: list[tuple[str, Mapping[str, Any]]] = [
            (str(key), value) for key, value in stats.items() if isinstance(value, dict)
        ]
        yield from nested or [(self.connector or "connector", stats)]

    def transfers(
        self, stats: Mapping[str, Any], keys: tuple[Key, ...] = (), end_s: float | None = None
    ) -> Iterable[HandleTransfer]:
        """Yield one per handle; lists that an older version lacks leave their fields absent.

        With `end_s`, when the step saw them complete, each start is that less its duration.
        """
        for _, child in self.children(stats):
            columns = [child.get(name) or () for name in LISTS]
            for index in range(max(len(one) for one in columns)):
                duration_s, post_s, moved, descriptors = (
                    float(one[index]) if index < len(one) else None for one in columns
                )
                start_s = None if end_s is None or duration_s is None else end_s - duration_s
                yield HandleTransfer(
                    source="vllm plugin",
                    keys=keys,
                    node=self.node,
                    direction=self.direction,
                    backend=self.connector or None,
                    start_s=start_s,
                    duration_s=duration_s,
                    post_s=post_s,
                    bytes=moved,
                    descriptors=descriptors,
                    evidence={} if start_s is None else {"start_s": "derived"},
                )


def copy_stats(stats: Any) -> dict[str, Any]:
    """Return a copy that later changes do not reach; of MultiConnector's statistics, one per child connector."""
    if not stats:
        return {}
    data = stats if isinstance(stats, dict) else getattr(stats, "data", {})
    return {
        key: list(value) if isinstance(value, list) else copy_stats(value) if _nested(value) else value
        for key, value in data.items()
    }


def _nested(value: Any) -> bool:
    return isinstance(value, dict) or hasattr(value, "data")


def direction_of(connector: str, extra: Mapping[str, Any]) -> str | None:
    """Return which side moves the data; MoRIIO pushes unless `read_mode` is set, a MultiConnector does not tell."""
    if "MoRIIO" in connector:
        return "pull" if str(extra.get("read_mode", "")).lower() in ("true", "1") else "push"
    if any(name in connector for name in _PUSHING):
        return "push"
    return "pull" if connector.startswith("Nixl") else None
