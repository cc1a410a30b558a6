"""CON005: beside uverbs nodes, /dev/infiniband holds rdma_cm."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.rdma import joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.kernel import Kernel
from kvdiag.model.missing import Missing, present
from kvdiag.model.rdma import RdmaDevices
from kvdiag.model.verbs import DeviceNodes

CODE = "CON005"


def run(hosts: Hosts) -> Outcome:
    nodes = hosts.local.part(DeviceNodes)
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, RdmaDevices) and not devices.devices:
        return NotApplicable("no RDMA device on this host")
    if isinstance(nodes, Missing):
        return NotObservable(nodes.missing)
    names = [node.name for node in nodes.nodes]
    uverbs = [name for name in names if name.startswith("uverbs")]
    if not uverbs:
        return NotApplicable("no uverbs node in /dev/infiniband")
    if "rdma_cm" in names:
        return Passed(f"rdma_cm stands beside {joined(uverbs, 4)}")
    kernel = hosts.local.part(Kernel)
    modules = () if isinstance(kernel, Missing) else present(kernel.modules) or ()
    loaded = "rdma_ucm" in modules
    finding = Finding(
        code=CODE,
        # What opens it (librdmacm: libfabric's verbs provider, UCX's rdmacm) is seldom on the way of KV blocks.
        severity=Severity.INFO,
        subject="/dev/infiniband/rdma_cm",
        summary="rdma_cm is missing beside the uverbs nodes: programs that connect through librdmacm fail",
        evidence=(
            Evidence(name="nodes", value=joined(names), source="/dev/infiniband", threshold="rdma_cm among them"),
        ),
        action=(
            "give the container /dev/infiniband/rdma_cm too: docker run --device=/dev/infiniband/rdma_cm"
            if loaded
            else "modprobe rdma_ucm on the host, and give the container /dev/infiniband/rdma_cm too"
        ),
        host=hosts.local.host,
    )
    return Failed((finding,))


CHECK = Check(code=CODE, title="rdma_cm stands beside the uverbs nodes", run=run)
