"""How many objects each RDMA device allows, as libibverbs tells it: asked for once in ten minutes."""

from collections.abc import Iterator

from kvdiag.model.missing import Missing
from kvdiag.model.verbs import VerbsDevices
from kvdiag.sources import verbs_devices
from kvdiag_exporters.catalog import Metric, Sample
from kvdiag_exporters.collectors.base import Setup

ASK_EVERY_S = 600.0
"""Limits change with the driver only; asking opens every device in a program of its own."""

KINDS = {"max_qp": "qp", "max_cq": "cq", "max_mr": "mr", "max_pd": "pd", "max_srq": "srq"}
"""Names of struct ibv_device_attr, and the kind that kvdiag_rdma_objects counts."""

LIMIT = Metric(
    name="kvdiag_rdma_objects_limit",
    kind="gauge",
    labels=("node", "device", "kind"),
    help="Most objects of a kind that the device allows, all processes together.",
)

METRICS = (LIMIT,)


class RdmaLimitsCollector:
    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._asked_s = float("-inf")
        self._told: VerbsDevices | Missing = Missing("not asked yet")
        self.missing: tuple[str, ...] = ()

    def collect(self) -> Iterator[Sample]:
        """Yield the limits of every device that could be opened."""
        if isinstance(names := self._setup.tree.names("/sys/class/infiniband"), Missing) or not names:
            self.missing = ()
            return
        now_s = self._setup.clock.monotonic_s()
        if now_s - self._asked_s >= ASK_EVERY_S:
            self._told, self._asked_s = verbs_devices.SOURCE.read(self._setup.context), now_s
        if isinstance(self._told, Missing):
            self.missing = (self._told.missing,)
            return
        self.missing = ()
        for device in self._told.devices:
            for name, kind in KINDS.items():
                if name in device.limits:
                    yield LIMIT.sample(float(device.limits[name]), self._setup.node, device.name, kind)


def create(setup: Setup) -> RdmaLimitsCollector:
    return RdmaLimitsCollector(setup)
