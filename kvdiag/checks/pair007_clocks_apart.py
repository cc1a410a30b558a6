"""PAIR007: the clocks of both ends agree well enough to put events of one request in order."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.rdma import joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.pair import PairMeasurements
from kvdiag.model.snapshot import Snapshot

CODE = "PAIR007"
NOTED_S = 0.1
"""Stages of a request last tens of milliseconds: from here on, spans of two hosts come out in the wrong order."""
WARNED_S = 1.0
"""More than any prefill of common prompts: per-stage times across hosts are then meaningless."""


def run(hosts: Hosts) -> Outcome:
    if not hosts.peers:
        return NotApplicable("no peer given: name one with --peer HOST:PORT")
    findings, hidden, fine = [], [], []
    for peer in hosts.peers:
        measured = peer.part(PairMeasurements)
        if isinstance(measured, Missing):
            hidden.append(f"{peer.host}: {measured.missing}")
            continue
        low, high = measured.clock_ahead_low_s, measured.clock_ahead_high_s
        if isinstance(low, Missing) or isinstance(high, Missing):
            hidden.append(f"{peer.host}: {low if isinstance(low, Missing) else high}")
            continue
        # The offset is at least this large, whatever the request's way took in either direction.
        least = max(low, -high, 0.0)
        if least >= NOTED_S:
            findings.append(_finding(hosts.local, peer, measured, low, high, least))
        else:
            fine.append(f"{peer.host}: between {low:+.4f} and {high:+.4f} s")
    if findings:
        return Failed(tuple(findings))
    return NotObservable(hidden[0]) if hidden else Passed(joined(fine))


def _finding(
    local: Snapshot, peer: Snapshot, measured: PairMeasurements, low: float, high: float, least: float
) -> Finding:
    ahead = "ahead of" if low > 0 else "behind"
    return Finding(
        code=CODE,
        severity=Severity.WARNING if least >= WARNED_S else Severity.INFO,
        subject=peer.host,
        summary=f"the clock of {peer.host} is at least {least:.3f} s {ahead} that of {local.host}",
        evidence=(
            Evidence(
                name=f"clock of {peer.host} less that of {local.host}",
                value=f"between {low:+.4f} and {high:+.4f} s",
                source=f"five questions to {measured.address}, the fastest answered within {measured.round_trip_s} s",
                threshold=f"less than {NOTED_S} s",
            ),
        ),
        action="synchronise both with one time server: chronyc tracking (or timedatectl timesync-status) on both",
        host=local.host,
    )


CHECK = Check(code=CODE, title="the clocks of both ends agree", run=run)
