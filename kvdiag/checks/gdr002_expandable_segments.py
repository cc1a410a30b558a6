"""GDR002: the KV pool is allocated in a way that an RDMA card can register."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.engines import transferring
from kvdiag.derive.gpu_memory import has_dmabuf, peermem, without_expandable_segments
from kvdiag.derive.rdma import SOFTWARE_DRIVERS, active_ports, device_of, joined
from kvdiag.derive.setting import group_of
from kvdiag.model.engine import EngineSetup
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.kernel import Kernel
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import RdmaDevices
from kvdiag.model.serving import ServingProcesses

CODE = "GDR002"
_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""The second is the name since PyTorch 2.9; both are read."""


def run(hosts: Hosts) -> Outcome:
    kernel = hosts.local.part(Kernel)
    devices = hosts.local.part(RdmaDevices)
    serving = hosts.local.part(ServingProcesses)
    setups = transferring(hosts.local)
    for part in (kernel, devices, serving, setups):
        if isinstance(part, Missing):
            return NotObservable(part.missing)
    assert isinstance(kernel, Kernel)
    assert isinstance(devices, RdmaDevices)
    assert isinstance(serving, ServingProcesses)
    assert not isinstance(setups, Missing)
    if not {device_of(devices, port).driver for port in active_ports(devices)} - SOFTWARE_DRIVERS:
        return NotApplicable("no ACTIVE port of an RDMA card")
    if isinstance(kernel.nvidia_version, Missing):
        return NotApplicable("the NVIDIA driver is not loaded")
    if not setups:
        return NotApplicable(f"none of {len(serving.processes)} serving process(es) is set up to transfer KV blocks")
    hidden = [setup.variables for setup in setups if isinstance(setup.variables, Missing)]
    found = [(setup, name, value) for setup in setups for name, value in _expandable(setup)]
    if found:
        return Failed(tuple(_finding(*item, kernel, hosts.local.host) for item in found))
    if hidden:
        return NotObservable(hidden[0].missing)
    return Passed(f"no expandable segments: {joined(setup.process.name for setup in setups)}")


def _expandable(setup: EngineSetup) -> list[tuple[str, str]]:
    """Return the variables that switch expandable segments on; PyTorch takes the last of repeated options."""
    found = []
    for name in _VARIABLES:
        value = setup.variable(name)
        if isinstance(value, str):
            options = dict(part.strip().lower().partition(":")[::2] for part in value.split(","))
            if options.get("expandable_segments", "").strip() == "true":
                found.append((name, value))
    return found


def _finding(setup: EngineSetup, name: str, value: str, kernel: Kernel, host: str) -> Finding:
    process = setup.process
    dmabuf = has_dmabuf(kernel)
    module = peermem(kernel)
    connectors = joined(connector.name for connector in setup.connectors)
    return Finding(
        code=CODE,
        severity=Severity.WARNING if dmabuf is True else Severity.CRITICAL,
        subject=process.name,
        summary=(
            "GPU memory is allocated in expandable segments, which "
            + ("only newer connectors register (through dma-buf)" if dmabuf is True else "peermem cannot register")
        ),
        evidence=(
            Evidence(name=name, value=value, source=f"/proc/{process.pid}/environ", threshold="no expandable_segments"),
            Evidence(name="connector", value=connectors, source=f"/proc/{process.pid}/cmdline"),
            Evidence(
                name="way to GPU memory",
                value=f"peermem: {module or 'not loaded'}; dma-buf: {'usable' if dmabuf is True else 'not usable'}",
                source="/proc/modules, /proc/driver/nvidia/version",
            ),
        ),
        action=(
            f"{without_expandable_segments(group_of(process), name, value)} (expandable_segments:False was not enough "
            "for one user), then look again"
        ),
        host=host,
    )


CHECK = Check(code=CODE, title="GPU memory is allocated so that it can be registered", run=run)
