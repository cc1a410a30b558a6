"""TRN011: where UCX is told to use NVLink between nodes, there is an IMEX channel and one domain."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.environments import NamedEnvironment
from kvdiag.derive.rdma import joined
from kvdiag.derive.setting import set_variable
from kvdiag.derive.ucx_users import ucx_environments
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.gpu import NvidiaGpus
from kvdiag.model.imex import ImexChannels
from kvdiag.model.missing import Missing, present
from kvdiag.model.snapshot import Snapshot

CODE = "TRN011"
_VARIABLE = "UCX_CUDA_IPC_ENABLE_MNNVL"


def run(hosts: Hosts) -> Outcome:
    found = ucx_environments(hosts.local)
    if isinstance(found, Missing):
        return NotObservable(found.missing)
    asking = [named for named in found if named.variables.get(_VARIABLE, "").lower() in ("y", "yes", "1", "on", "true")]
    if not asking:
        return NotApplicable(f"{_VARIABLE} is not set: nothing asks for NVLink between nodes")
    imex = hosts.local.part(ImexChannels)
    if isinstance(imex, Missing):
        return NotObservable(imex.missing)
    if not imex.channels:
        return Failed((_no_channel(asking[0], imex, hosts.local.host),))
    domain = _domain(hosts.local)
    other = [peer for peer in hosts.peers if domain and _domain(peer) and _domain(peer) != domain]
    if other:
        return Failed((_other_domain(asking[0], domain, other, hosts.local),))
    hidden = [snapshot.host for snapshot in (hosts.local, *hosts.peers) if not _domain(snapshot)]
    if hosts.peers and hidden:
        return NotObservable(f"{joined(imex.channels)}, but the NVLink domain of {joined(hidden)} is not shown")
    return Passed(f"{joined(imex.channels)}; " + (f"NVLink domain {domain}" if domain else "NVLink domain not shown"))


def _domain(snapshot: Snapshot) -> str:
    """Return the cluster UUID of the GPUs, "" where none is shown; all zero is no domain."""
    gpus = present(snapshot.part(NvidiaGpus))
    found = {gpu.cluster_uuid for gpu in (gpus.gpus if gpus else ()) if isinstance(gpu.cluster_uuid, str)}
    named = sorted(uuid for uuid in found if uuid.strip("0-"))
    return named[0] if named else ""


def _set(named: NamedEnvironment) -> Evidence:
    return Evidence(name=_VARIABLE, value=named.variables[_VARIABLE], source=named.origin)


def _no_channel(named: NamedEnvironment, imex: ImexChannels, host: str) -> Finding:
    reason = "the driver offers them" if imex.supported else "the driver does not offer them"
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=named.subject,
        summary=(
            f"{_VARIABLE} is on, but there is no IMEX channel here: consistent with "
            "cuMemImportFromShareableHandle failing, or with transfers that do not use NVLink"
        ),
        evidence=(
            _set(named),
            Evidence(
                name="IMEX channels",
                value=f"none ({reason})",
                source="/dev/nvidia-caps-imex-channels, /proc/devices",
                threshold="channel0",
            ),
        ),
        action=(
            "give the container its channel (Kubernetes: a ComputeDomain claim; else "
            "--device=/dev/nvidia-caps-imex-channels/channel0), and run nvidia-imex on the host; without NVLink "
            f"between the nodes: {set_variable(named.group, _VARIABLE, 'n')}"
        ),
        host=host,
    )


def _other_domain(named: NamedEnvironment, domain: str, other: list[Snapshot], local: Snapshot) -> Finding:
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=joined(peer.host for peer in other),
        summary=f"{_VARIABLE} is on, but {joined(peer.host for peer in other)} is in another NVLink domain",
        evidence=(
            _set(named),
            Evidence(name=f"cluster UUID of {local.host}", value=domain, source="nvidia-smi -q, Fabric"),
            *(
                Evidence(
                    name=f"cluster UUID of {peer.host}",
                    value=_domain(peer),
                    source="nvidia-smi -q, Fabric",
                    threshold=domain,
                )
                for peer in other
            ),
        ),
        action=(
            "pair nodes of one domain; or, so that transfers to it use RDMA: "
            f"{set_variable(named.group, _VARIABLE, 'n')}"
        ),
        host=local.host,
    )


CHECK = Check(code=CODE, title="NVLink between nodes has what it needs", run=run)
