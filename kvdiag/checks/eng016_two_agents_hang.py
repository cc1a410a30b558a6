"""ENG016: this NIXL version lets two agents start on one host."""

import re

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.checks.logged import logged
from kvdiag.derive.engines import transferring
from kvdiag.derive.rdma import joined
from kvdiag.model.engine import EngineSetup
from kvdiag.model.engine_packages import EnginePackages
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing, present

CODE = "ENG016"
_HANGING = frozenset({"0.10.1"})
"""NIXL wheels with a UCX 1.20 in which two agents of one host hang while creating their backend (reproduced in a public
report)."""
_NIXL = ("nixl-cu12", "nixl-cu13", "nixl")
_RANKS = ("--tensor-parallel-size", "-tp", "--tp-size", "--tp")


def run(hosts: Hosts) -> Outcome:
    found = transferring(hosts.local, "nixl")
    packages = hosts.local.part(EnginePackages)
    if isinstance(found, Missing):
        return NotObservable(found.missing)
    if isinstance(packages, Missing):
        return NotObservable(packages.missing)
    if not found:
        return NotApplicable("no process that transfers with NIXL")
    known = [(item, packages.of(item.process.pid).version(*_NIXL)) for item in found]
    versions = {version for _, version in known if version}
    hanging = [item for item, version in known if version in _HANGING]
    agents = sum(_agents(item) for item in found)
    if hanging and agents > 1:
        return Failed((_finding(hosts, hanging, agents),))
    if not versions:
        hidden = packages.of(found[0].process.pid).packages
        why = hidden.missing if isinstance(hidden, Missing) else "no package of NIXL among those it has mapped"
        return NotObservable(f"the NIXL version of {found[0].process.name} cannot be seen: {why}")
    return Passed(f"NIXL {joined(sorted(versions))}, {agents} agent(s)")


def _agents(setup: EngineSetup) -> int:
    ranks = setup.option(*_RANKS) or "1"
    return min(int(ranks), 1024) if ranks.isdecimal() else 1


def _finding(hosts: Hosts, hanging: list[EngineSetup], agents: int) -> Finding:
    stack = logged(hosts.local, "hang_stack")
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=joined(item.process.name for item in hanging),
        summary=(
            f"{agents} NIXL agents on this host, and NIXL {joined(sorted(_HANGING))} hangs when a second one starts"
        ),
        evidence=(
            Evidence(
                name="nixl version",
                value=joined(sorted(_HANGING)),
                source=f"the packages of process {hanging[0].process.pid}",
                threshold="another version",
            ),
            *(item.evidence("in createBackend") for item in stack[:1]),
        ),
        action=(
            f"{_pip(hosts, hanging[0])} install --no-deps --upgrade 'nixl-cu12!=0.10.1' (nixl-cu13 with CUDA 13), then "
            "start both again"
        ),
        host=hosts.local.host,
    )


def _pip(hosts: Hosts, engine: EngineSetup) -> str:
    """Return the pip of the folder that the engine takes NIXL from."""
    packages = hosts.local.part(EnginePackages)
    found = () if isinstance(packages, Missing) else present(packages.of(engine.process.pid).packages) or ()
    folder = next((item.folder for item in found if item.name.startswith("nixl")), "")
    prefix = re.match(r"(.+)/lib(?:64)?/python[\d.]+/(?:site|dist)-packages", folder)
    return f"{prefix[1]}/bin/python3 -m pip" if prefix else "pip"


CHECK = Check(code=CODE, title="NIXL's version starts more than one agent", run=run)
