"""REG001: a large host segment is registered in reasonable time."""

import re

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.engines import setups
from kvdiag.derive.rdma import SOFTWARE_DRIVERS, active_ports, device_of, joined
from kvdiag.model.engine import EngineSetup
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.kernel import Kernel
from kvdiag.model.missing import Missing, present
from kvdiag.model.rdma import RdmaDevices
from kvdiag.model.serving import ServingProcess
from kvdiag.model.snapshot import Snapshot

CODE = "REG001"
_UNTOUCHED_BYTES_PER_S = 50e9 / 60
_TOUCHED_BYTES_PER_S = 500e9 / 49.2
_PARALLEL_GAIN = 49.2 / 11.7
"""Figures of Mooncake's developers: 50 GB with page faults in about 60 s; 500 GB already touched in 49.2 s, in parallel
in 11.7 s."""
_LONG_S = 60.0
"""The shortest start-up that the reports behind those figures complain of."""
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,3})?) *([kmgt]?)(?:i?b)?", re.IGNORECASE)
_OPTIONS = ("--global-segment-size", "--global_segment_size")
_VARIABLE = "MOONCAKE_GLOBAL_SEGMENT_SIZE"
_PARALLEL = "MC_ENABLE_PARALLEL_REG_MR"


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    found = setups(hosts.local)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    if isinstance(found, Missing):
        return NotObservable(found.missing)
    cards = dict.fromkeys(
        port.device for port in active_ports(devices) if device_of(devices, port).driver not in SOFTWARE_DRIVERS
    )
    if not cards:
        return NotApplicable("no ACTIVE port of an RDMA card: nothing is registered")
    sized = [(setup, size) for setup in found if (size := _segment(setup)) is not None]
    hidden = [setup.variables for setup in found if isinstance(setup.variables, Missing)]
    if not sized:
        if hidden:
            return NotObservable(hidden[0].missing)
        return NotApplicable("no Mooncake segment size is set on a command line or in an environment")
    slow = [
        (setup, size)
        for setup, size in sized
        if not _is_parallel(setup) and size[0] / _UNTOUCHED_BYTES_PER_S >= _LONG_S
    ]
    if slow:
        return Failed(tuple(_finding(hosts.local, setup, size, tuple(cards)) for setup, size in slow))
    return Passed(joined(f"{setup.process.name}: segment of {_gb(size[0])}" for setup, size in sized))


Size = tuple[int, str, str]
"""Bytes, the setting that says so, and where it was read."""


def _segment(setup: EngineSetup) -> Size | None:
    option = setup.option(*_OPTIONS)
    variable = setup.variable(_VARIABLE)
    for name, text, place in ((_OPTIONS[0], option, "cmdline"), (_VARIABLE, variable, "environ")):
        match = _SIZE.fullmatch(text.strip().strip('"')) if isinstance(text, str) else None
        if match:
            unit = 1 << (10 * " kmgt".index(match[2].lower() or " "))
            return int(float(match[1]) * unit), f"{name}={text}", f"/proc/{setup.process.pid}/{place}"
    return None


def _is_parallel(setup: EngineSetup) -> bool:
    return setup.variable(_PARALLEL) == "1"


def _gb(size: int) -> str:
    return f"{size / 1e9:.0f} GB"


def _finding(local: Snapshot, setup: EngineSetup, size: Size, cards: tuple[str, ...]) -> Finding:
    kernel = present(local.part(Kernel))
    pages = None if kernel is None else present(kernel.huge_pages)
    untouched, touched = size[0] / _UNTOUCHED_BYTES_PER_S, size[0] / _TOUCHED_BYTES_PER_S
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=setup.process.name,
        summary=(
            f"registering a segment of {_gb(size[0])} one part after the other is consistent with {touched:.0f} to "
            f"{untouched:.0f} s of start-up"
        ),
        evidence=(
            Evidence(name="segment", value=size[1], source=size[2]),
            Evidence(
                name=_PARALLEL,
                value=str(setup.variable(_PARALLEL) or "not set"),
                source=f"/proc/{setup.process.pid}/environ",
                threshold="1",
            ),
            Evidence(
                name="huge pages set aside",
                value="unknown" if pages is None else str(pages),
                source="/proc/meminfo, HugePages_Total",
            ),
            Evidence(name="RDMA devices", value=joined(cards), source="/sys/class/infiniband"),
        ),
        action=_action(setup.process),
        host=local.host,
    )


def _action(process: ServingProcess) -> str:
    return (
        f"start {process.engine} with {_PARALLEL}=1 (about {_PARALLEL_GAIN:.0f} times faster), touch the memory in "
        "parallel first or use huge pages, and register on the cards that carry this rank only"
    )


CHECK = Check(code=CODE, title="large segments are registered in parallel", run=run)
