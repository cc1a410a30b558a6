"""What goes on over a reload: what was counted since the start, all but that of engines and nodes that are gone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from kvdiag_exporters.catalog import Metric

if TYPE_CHECKING:
    from kvdiag_exporters.collectors.base import Setup

_NODES = frozenset(("node", "prefill_node", "decode_node"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """The nodes and engines (by name) that were configured and are no more; one that has changed its labels is gone."""

    nodes: frozenset[str] = frozenset()
    engines: frozenset[str] = frozenset()

    @classmethod
    def between(cls, before: "Setup", after: "Setup") -> Self:
        """Return what the configuration before has and the one after has not."""
        kept = {one.labels for one in after.engines}
        return cls(
            nodes=frozenset(_nodes(before) - _nodes(after)),
            engines=frozenset(one.name for one in before.engines if one.labels not in kept),
        )

    def has(self, metric: Metric, labels: tuple[str, ...]) -> bool:
        """Return whether a series is of something that is gone."""
        return any(
            (name in _NODES and value in self.nodes) or (name == "engine" and value in self.engines)
            for name, value in zip(metric.labels, labels, strict=True)
        )


@runtime_checkable
class GoesOn(Protocol):
    """A collector or derivation that counts on its own: what a file or the kernel counts needs no keeping."""

    def go_on(self, before: Any, gone: Gone) -> None:
        """Begin with what the one `before`, of the same kind, has counted, without what is of something `gone`."""


def go_on(before: Mapping[str, object], after: Mapping[str, object], gone: Gone) -> None:
    """Let every part that counts on its own begin where the one of the same name ended."""
    for name, part in after.items():
        earlier = before.get(name)
        if isinstance(part, GoesOn) and type(earlier) is type(part):
            part.go_on(earlier, gone)


def _nodes(setup: "Setup") -> set[str]:
    return {setup.node, *(one.node for one in setup.engines)}
