"""LIM004: there is room for more queue pairs."""

from collections import Counter

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.rdma import joined
from kvdiag.model.engine_log import EngineLogs
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing, present
from kvdiag.model.rdma import RdmaDevices
from kvdiag.model.rdma_resources import RdmaResources
from kvdiag.model.snapshot import Snapshot
from kvdiag.model.verbs import VerbsDevices

CODE = "LIM004"
_FULL = 0.8
"""Above 80% of max_qp a leak of queue pairs, one for each failed session, stops the next start of an engine."""
_NO_MEMORY = "12"


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    if not devices.devices:
        return NotApplicable("no RDMA device")
    resources = hosts.local.part(RdmaResources)
    verbs = hosts.local.part(VerbsDevices)
    refused = _refused(hosts.local)
    findings = []
    judged = []
    unknown = []
    for summary in () if isinstance(resources, Missing) else resources.summaries:
        used = summary.counts.get("qp", 0)
        most = verbs if isinstance(verbs, Missing) else verbs.limit(summary.device, "max_qp")
        if isinstance(most, Missing):
            unknown.append(most.missing)
            continue
        judged.append(f"{summary.device} {used} of {most}")
        if most > 0 and used > _FULL * most:
            findings.append(_full(hosts.local, summary.device, used, most))
    if refused:
        findings.append(_logged(hosts.local, refused, resources))
    if findings:
        return Failed(tuple(findings))
    if isinstance(resources, Missing):
        return NotObservable(resources.missing)
    logs = present(hosts.local.part(EngineLogs))
    files = () if logs is None or isinstance(logs.files, Missing) else logs.files
    unknown += [file.unreadable for file in files if file.unreadable]
    if unknown:
        return NotObservable(unknown[0])
    return Passed(f"queue pairs in use: {joined(judged)}")


def _refused(local: Snapshot) -> list[tuple[str, str, int, str]]:
    """Return file, place, count and text of each kind of line in engine logs that says ENOMEM for a queue pair."""
    logs = present(local.part(EngineLogs))
    files = () if logs is None or isinstance(logs.files, Missing) else logs.files
    return [
        (file.path, event.place, event.count, event.text)
        for file in files
        for event in file.events
        if event.kind == "queue_failed"
        and event.fields.get("errno") == _NO_MEMORY
        and "QP" in event.fields.get("object", "").upper()
    ]


def _full(local: Snapshot, device: str, used: int, most: int) -> Finding:
    resources = present(local.part(RdmaResources))
    owners = Counter(
        f"{pair.owner or 'process'} ({pair.pid})"
        for pair in (resources.queue_pairs if resources else ())
        if pair.device == device and isinstance(pair.pid, int)
    )
    listed = sum(owners.values())
    # In a pid namespace the kernel shows the queue pairs of its processes only, and counts all of the card.
    worst = owners.most_common(1) if 2 * listed > used else []
    held = tuple(
        Evidence(name="held by", value=f"{name}: {count} of those listed", source="rdma resource show qp")
        for name, count in owners.most_common(3)
    )
    return Finding(
        code=CODE,
        severity=Severity.CRITICAL,
        subject=device,
        summary=f"{used} of {most} queue pairs of {device} are in use: new connections will be refused",
        evidence=(
            Evidence(
                name="queue pairs",
                value=f"{used} ({used / most:.0%})",
                source="rdma resource show",
                threshold=f"below {_FULL:.0%} of max_qp {most}",
            ),
            *held,
        ),
        action=(
            (
                f"restart {worst[0][0]}"
                if worst
                else f"{listed} of {used} are visible from this pid namespace: find who holds the others on the host "
                f"(rdma resource show qp link {device})"
            )
            + ", then watch whether the number grows again: watch -n 10 rdma resource show"
        ),
        host=local.host,
        devices=(device,),
    )


def _logged(local: Snapshot, refused: list[tuple[str, str, int, str]], resources: RdmaResources | Missing) -> Finding:
    path, place, _, text = refused[0]
    total = sum(count for _, _, count, _ in refused)
    used = "; ".join(
        f"{summary.device} {summary.counts.get('qp', 0)}"
        for summary in (() if isinstance(resources, Missing) else resources.summaries)
    )
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=path,
        summary=(
            f"creating a queue pair failed {total} time(s) with Cannot allocate memory, consistent with queue pairs "
            "left over from failed sessions, or with a limit"
        ),
        evidence=(
            Evidence(name=f"log line ({total} of its kind)", value=text, source=f"{path}, {place}"),
            Evidence(
                name="queue pairs in use now",
                value=used or (resources.missing if isinstance(resources, Missing) else "none"),
                source="rdma resource show",
            ),
        ),
        action="watch -n 10 rdma resource show: if qp grows while sessions do not, restart the engine; else see LIM001",
        host=local.host,
    )


CHECK = Check(code=CODE, title="there is room for queue pairs", run=run, explained_by=("LIM001",))
