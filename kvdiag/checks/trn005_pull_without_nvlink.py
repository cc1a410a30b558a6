"""TRN005: GPUs of one host that pull from each other without RDMA are joined by NVLink."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.engines import transferring
from kvdiag.derive.rdma import active_ports, joined
from kvdiag.model.engine import EngineSetup
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.gpu_matrix import GpuMatrix
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import RdmaDevices

CODE = "TRN005"


def run(hosts: Hosts) -> Outcome:
    engines = transferring(hosts.local, "nixl")
    if isinstance(engines, Missing):
        return NotObservable(engines.missing)
    pulling = [engine for engine in engines if any(item.direction == "pull" for item in engine.connectors)]
    if len(pulling) < 2:
        return NotApplicable("no two engines here pull KV blocks through NIXL from each other")
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    if active_ports(devices):
        return NotApplicable("an RDMA port is ACTIVE: a pull that GPU peer copies cannot serve goes over it")
    matrix = hosts.local.part(GpuMatrix)
    if isinstance(matrix, Missing):
        return NotObservable(matrix.missing)
    pairs = matrix.between_gpus
    if not pairs:
        return NotApplicable("fewer than two NVIDIA GPUs")
    without = [f"{link.one}-{link.other} {link.kind}" for link in pairs if not link.kind.startswith("NV")]
    if not without:
        return Passed(f"{len(pairs)} pair(s) of GPUs are joined by NVLink")
    return Failed((_finding(hosts.local.host, pulling, without, matrix.origin),))


def _finding(host: str, pulling: list[EngineSetup], without: list[str], origin: str) -> Finding:
    engine = pulling[0]
    connector = next(item for item in engine.connectors if item.direction == "pull")
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=joined(item.process.name for item in pulling),
        summary=(
            f"{connector.name} pulls between GPUs without NVLink, and no RDMA port is ACTIVE: UCX's cuda_ipc serves "
            "writes there but not reads, which go over TCP"
        ),
        evidence=(
            Evidence(
                name="connector",
                value=f"{connector.name} (READ)",
                source=f"/proc/{engine.process.pid}/cmdline",
                threshold="a connector that writes",
            ),
            Evidence(name="GPU pairs without NVLink", value=joined(without), source=f"{origin} (nvidia-smi topo -m)"),
            Evidence(name="ACTIVE RDMA ports", value="0", source="/sys/class/infiniband"),
        ),
        action=(
            'use the push connector ("kv_connector": "NixlPushConnector"): a public report measured 49 GB/s where '
            "the pull connector had 0.5 GB/s"
        ),
        host=host,
    )


CHECK = Check(code=CODE, title="pulls between GPUs of this host have a fast path", run=run)
