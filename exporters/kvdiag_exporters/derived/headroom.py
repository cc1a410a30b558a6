"""How near limits are: RDMA objects of a device, pinned memory of an engine, the window of a GPU; pairs in error."""

from collections.abc import Sequence

from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag_exporters.catalog import Buckets, Metric, Sample
from kvdiag_exporters.collectors import engine_process, gpu, rdma_limits, rdma_resources
from kvdiag_exporters.collectors.base import Setup
from kvdiag_exporters.derived.base import Derived, Key

NEAR = 0.9
"""From here on a limit is told: the last tenth goes with one more engine, or one more peer for each of its ranks."""

USED = Metric(
    name="kvdiag_rdma_objects_used_ratio",
    kind="gauge",
    unit="ratio",
    labels=("node", "device", "kind"),
    help="Share of the device's limit that is taken, all processes together.",
)
WINDOW_USED = Metric(
    name="kvdiag_gpu_window_used_ratio",
    kind="gauge",
    unit="ratio",
    labels=("node", "gpu"),
    help="Share of the window that NICs reach which is taken; registering GPU memory fails at 1.",
)

METRICS = (USED, WINDOW_USED)

_WANTED = frozenset(
    metric.name
    for metric in (
        rdma_resources.OBJECTS,
        rdma_resources.QUEUE_PAIRS,
        rdma_limits.LIMIT,
        gpu.WINDOW_USED,
        gpu.WINDOW,
        engine_process.PINNED_SHARE,
    )
)


class HeadroomDerivation:
    def derive(self, samples: Sequence[Sample], monotonic_s: float) -> Derived:  # noqa: ARG002
        """Return each limit's used share, a finding for one that is nearly reached, and one for pairs in error."""
        values = {
            (metric.name, labels): value
            for metric, labels, value in samples
            if metric.name in _WANTED and not isinstance(value, Buckets)
        }
        found = Derived()
        pairs = (
            (rdma_resources.OBJECTS, rdma_limits.LIMIT, USED, "end what holds them, or spread them over more devices"),
            (gpu.WINDOW_USED, gpu.WINDOW, WINDOW_USED, "enlarge BAR1 in the firmware's settings, or register less"),
        )
        for used, limit, share, action in pairs:
            for (name, labels), most in values.items():
                taken = values.get((used.name, labels))
                if name == limit.name and taken is not None and most > 0:
                    ratio = min(1.0, taken / most)
                    found.samples.append(share.sample(ratio, *labels))
                    if ratio >= NEAR:
                        found.findings.append(_near(share.name, labels, ratio, f"{taken:g} of {most:g}", action))
        for (name, labels), value in values.items():
            if name == engine_process.PINNED_SHARE.name and value >= NEAR:
                action = "raise the engine's memlock limit (ulimit -l, LimitMEMLOCK, or the container's)"
                found.findings.append(_near(name, labels, value, f"{value:.0%} of memlock", action))
        found.findings += _in_error(values)
        return found


def _near(name: str, labels: tuple[str, ...], ratio: float, detail: str, action: str) -> Finding:
    return Finding(
        code="EXP003",
        severity=Severity.CRITICAL if ratio >= 1 else Severity.WARNING,
        subject=" ".join(label for label in labels[1:] if label),
        summary=f"a limit is nearly reached: {detail}",
        evidence=(Evidence(name=name, value=f"{ratio:.3f}", source=detail, threshold=f"{NEAR:g}"),),
        action=action,
        host=labels[0],
    )


def _in_error(values: dict[Key, float]) -> list[Finding]:
    """Return one finding per device and engine with queue pairs in state ERR: they carry nothing, and never will."""
    counts: dict[tuple[str, str, str], float] = {}
    for (name, labels), value in values.items():
        if name == rdma_resources.QUEUE_PAIRS.name and labels[-1] == "ERR" and value > 0:
            head = (labels[0], labels[1], labels[2])
            counts[head] = counts.get(head, 0.0) + value
    return [
        Finding(
            code="EXP004",
            severity=Severity.WARNING,
            subject=f"{device} {engine}",
            summary=f"{count:g} queue pair(s) in state ERR",
            evidence=(Evidence(name="kvdiag_rdma_queue_pairs", value=f"{count:g}", source="RDMA netlink"),),
            action="look for its peer: killed, unreachable or refusing; kvdiag preflight --peer tells which",
            host=node,
            devices=(device,),
        )
        for (node, device, engine), count in sorted(counts.items())
    ]


def create(setup: Setup) -> HeadroomDerivation:  # noqa: ARG001  (derivations are made alike)
    return HeadroomDerivation()
