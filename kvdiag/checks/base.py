"""What a check is, what it may answer, and how all of them are found and run."""

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import kvdiag.checks
from kvdiag.model.finding import Finding, Severity
from kvdiag.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """What a check judges: this host, and the peers that were asked for their snapshot."""

    local: Snapshot
    peers: tuple[Snapshot, ...] = ()


@dataclass(frozen=True, slots=True)
class Passed:
    """Nothing wrong; `examined` says in one line what was looked at, with the number that shows it."""

    examined: str


@dataclass(frozen=True, slots=True)
class Failed:
    """One or more findings of this check."""

    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """There is nothing here that this check judges, and why (no GPU, no peer named, ...)."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotObservable:
    """There may be something to judge, but the evidence cannot be seen from here, and why."""

    reason: str


Outcome = Passed | Failed | NotApplicable | NotObservable


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """`code` is stable and starts the file's name in lower case; `title` says in a few words what must hold.

    A finding of this check is shown below one of a check in `explained_by`, and those of a check in `explains` below
    one of this check, where both concern the same host and device. Either file may say so; codes need not exist yet.
    """

    code: str
    title: str
    run: Callable[[Hosts], Outcome]
    explains: tuple[str, ...] = ()
    explained_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Judged:
    """A check and what it answered."""

    check: Check
    outcome: Outcome


def discover() -> tuple[Check, ...]:
    """Return the CHECK object of every module in this folder that has one, sorted by code."""
    found = []
    for module_info in pkgutil.iter_modules(kvdiag.checks.__path__):
        module = importlib.import_module(f"kvdiag.checks.{module_info.name}")
        check = getattr(module, "CHECK", None)
        if isinstance(check, Check):
            found.append(check)
    return tuple(sorted(found, key=lambda check: check.code))


def run(hosts: Hosts, checks: Iterable[Check] | None = None) -> tuple[Judged, ...]:
    """Run every check (default: all that `discover` finds) on the hosts, in the order of their codes.

    A check that raises hides no other: that it could not be run becomes its finding.
    """
    return tuple(Judged(check, _run(check, hosts)) for check in (discover() if checks is None else checks))


def _run(check: Check, hosts: Hosts) -> Outcome:
    try:
        return check.run(hosts)
    except Exception as error:
        finding = Finding(
            code=check.code,
            severity=Severity.WARNING,
            subject="kvdiag",
            summary=f"this check could not be run: {type(error).__name__}: {' '.join(str(error).split())[:200]}",
            evidence=(),
            action="this is a defect in kvdiag: report it with the output of --format json",
            host=hosts.local.host,
        )
        return Failed((finding,))
