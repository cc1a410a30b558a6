"""What happened between two collections, told from the difference of their samples."""

from collections.abc import Iterator, Mapping, Sequence

from kvdiag.model.bundle import BundleEvent
from kvdiag_exporters.catalog import Sample
from kvdiag_exporters.collectors import engine_process, netdev, nic, nixl, rdma_resources

Values = Mapping[tuple[str, tuple[str, ...]], float]

_LINKS = {nic.UP.name, netdev.UP.name}


def values(samples: Sequence[Sample]) -> Values:
    """Return the plain samples by metric name and labels."""
    return {(one.metric.name, one.labels): one.value for one in samples if isinstance(one.value, float)}


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
        elif name == rdma_resources.QUEUE_PAIRS.name and labels[-1] == "ERR" and value > old:
            yield BundleEvent(time_s=time_s, node=node, kind="qp_error", detail=f"{value - old:g} on {labels[1]}")
    new_errors = (
        (labels, value)
        for (name, labels), value in after.items()
        if name == rdma_resources.QUEUE_PAIRS.name and labels[-1] == "ERR" and (name, labels) not in before
    )
    for labels, value in new_errors if before else ():
        yield BundleEvent(time_s=time_s, node=labels[0], kind="qp_error", detail=f"{value:g} on {labels[1]}")
