"""CON004: the RDMA subsystem's namespace mode is the one that the installed Kubernetes plugins need."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma_namespace import RdmaNamespace

CODE = "CON004"


def run(hosts: Hosts) -> Outcome:
    found = hosts.local.part(RdmaNamespace)
    if isinstance(found, Missing):
        return NotObservable(found.missing)
    if found.shared_plugin_pid is None and not found.rdma_cni:
        return NotApplicable("neither the RDMA shared device plugin nor the rdma CNI plugin is seen here")
    if isinstance(found.mode, Missing):
        return NotObservable(found.mode.missing)
    if found.shared_plugin_pid is not None and found.mode == "exclusive":
        finding = _finding(
            hosts.local.host,
            Severity.CRITICAL,
            "the RDMA shared device plugin runs, but each RDMA device belongs to one network namespace (exclusive "
            "mode): it exits, and pods get no device",
            (_mode(found, "shared"), _plugin(found.shared_plugin_pid)),
            "rdma system set netns shared; and for good: echo 'options ib_core netns_mode=1' > "
            "/etc/modprobe.d/ib_core.conf",
        )
        return Failed((finding,))
    if found.rdma_cni and found.shared_plugin_pid is None and found.mode == "shared":
        finding = _finding(
            hosts.local.host,
            Severity.INFO,
            "the rdma CNI plugin is installed, but it moves no device into a pod in shared mode: pods see every device",
            (
                _mode(found, "exclusive, where pods are to see their own devices only"),
                Evidence(name="rdma CNI plugin", value="installed", source="/opt/cni/bin/rdma"),
            ),
            "where pods are to be isolated: rdma system set netns exclusive, before any pod with RDMA starts",
        )
        return Failed((finding,))
    return Passed(f"RDMA namespace mode {found.mode}, as the plugins here need it")


def _mode(found: RdmaNamespace, wanted: str) -> Evidence:
    return Evidence(name="netns", value=str(found.mode), source=found.origin, threshold=wanted)


def _plugin(pid: int) -> Evidence:
    return Evidence(name="k8s-rdma-shared-dp", value=f"process {pid}", source=f"/proc/{pid}/cmdline")


def _finding(host: str, severity: Severity, summary: str, evidence: tuple[Evidence, ...], action: str) -> Finding:
    return Finding(
        code=CODE,
        severity=severity,
        subject="rdma system",
        summary=summary,
        evidence=evidence,
        action=action,
        host=host,
    )


CHECK = Check(code=CODE, title="the RDMA namespace mode fits the Kubernetes plugins", run=run)
