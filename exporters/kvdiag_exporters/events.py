"""What happened between two collections, told from the difference of their samples."""

from collections.abc import Iterator, Mapping, Sequence

from kvdiag.model.bundle import BundleEvent
from kvdiag_exporters.catalog import Buckets, Sample
from kvdiag_exporters.collectors import engine_process, netdev, nic, nixl, rdma_resources

Values = Mapping[tuple[str, tuple[str, ...]], float]

_LINKS = {nic.UP.name, netdev.UP.name}


def values(samples: Sequence[Sample]) -> Values:
    """Return the plain samples by metric name and labels."""
    return {(one.metric.name, one.labels): one.value for one in samples if not isinstance(one.value, Buckets)}


def differences(before: Values, after: Values, time_s: float) -> Iterator[BundleEvent]:
    """Yield the events between two collections, dated at the later one: they happened at most an interval earlier."""
    for (name, labels), value in after.items():
        old = before.get((name, labels))
        if old is None or value == old:
            continue
        node = labels[0] if labels else None
        if name in _LINKS:
            device = "/".join(labels[1:] if name == nic.UP.name else labels[2:])
            yield BundleEvent(time_s=time_s, node=node, kind="link_up" if value else "link_down", detail=device)
        elif name == engine_process.UP.name:
            kind = "engine_start" if value else "engine_exit"
            yield BundleEvent(time_s=time_s, node=node, kind=kind, detail=labels[1])
        elif name == nixl.REGISTERED.name and value > old:
            yield BundleEvent(time_s=time_s, node=node, kind="mr_register", bytes=value - old, detail="nixl")
        elif name == nixl.DEREGISTERED.name and value > old:
            yield BundleEvent(time_s=time_s, node=node, kind="mr_deregister", bytes=value - old, detail="nixl")
        elif name == rdma_resources.QUEUE_PAIRS_SEEN.name and value > old:
            yield BundleEvent(time_s=time_s, node=node, kind="qp_create", detail=f"{value - old:g} on {labels[1]}")
    errors = _pairs_in_error(before)
    for (node, device), count in _pairs_in_error(after).items():
        new = count - errors.get((node, device), 0.0)
        if before and new > 0:
            yield BundleEvent(time_s=time_s, node=node, kind="qp_error", detail=f"{new:g} on {device}")


def _pairs_in_error(found: Values) -> dict[tuple[str, str], float]:
    """Return the queue pairs in state ERR by node and device, whoever owns them."""
    counts: dict[tuple[str, str], float] = {}
    for (name, labels), value in found.items():
        if name == rdma_resources.QUEUE_PAIRS.name and labels[-1] == "ERR":
            counts[labels[0], labels[1]] = counts.get((labels[0], labels[1]), 0.0) + value
    return counts
