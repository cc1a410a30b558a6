"""The part of `kvdiag probe connections` that needs no peer."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field

from kvdiag.errors import UndeterminedError
from kvdiag.model.missing import Missing
from kvdiag.model.probe_connections import (
    ConnectionsSettings,
    CreationRow,
    Exhaustion,
    SetupRow,
    SharingKind,
    SharingRow,
)
from kvdiag_probes import connections, sharing, tracing
from kvdiag_probes.gid import Choice
from kvdiag_probes.ib_pairs import PairRefusedError, Pairs
from kvdiag_probes.libibverbs import Domain
from kvdiag_probes.progress import bar
from kvdiag_probes.rdma_path import read_devices
from kvdiag_probes.sharing import Opener


@dataclass(slots=True, kw_only=True)
class Local:
    setup: tuple[SetupRow, ...]
    exhaustion: Exhaustion
    creation: list[CreationRow] = field(default_factory=list)
    sharing: tuple[SharingRow, ...] = ()
    missing: list[str] = field(default_factory=list)


@contextmanager
def open_pairs(choice: Choice) -> Iterator[tuple[connections.Maker, int]]:
    """Yield what makes queue pairs on a device's port, and the device's max_qp."""
    with Domain(choice.device) as domain, closing(Pairs(domain, choice.port, choice.gid_index, choice.gid)) as pairs:
        yield pairs, domain.limits().max_qp


def measure_local(
    choice: Choice,
    settings: ConnectionsSettings,
    progress: Callable[[str], None],
    opened: Callable[[Choice], AbstractContextManager[tuple[connections.Maker, int]]] = open_pairs,
    openers: Callable[[str], Mapping[SharingKind, Opener]] | None = None,
    keep: Callable[[Local], None] = lambda _: None,
) -> Local:
    """Measure set-up, creation by threads and the limit; UndeterminedError where not one pair can be connected.

    What the device refuses (a shared receive queue, so many pairs at once) is named as missing. `keep` gets the result
    as soon as it has set-up and limit; what follows is filled in.
    """
    with opened(choice) as (pairs, max_qp):
        steps = 3 + 2 * len(settings.threads)
        progress(bar(0, steps, "set-up"))
        try:
            with tracing.span(tracing.STAGES, "set-up"):
                setup = connections.time_setup(pairs, settings.rounds)
        except PairRefusedError as error:
            raise UndeterminedError(
                f"{choice.name}: no queue pair can be connected to another of this port: {error}; "
                "see `rdma resource show` for what is in use"
            ) from error
        progress(bar(1, steps, "limit"))
        with tracing.span(tracing.STAGES, "limit"):
            found = Local(setup=setup, exhaustion=connections.exhaust(pairs, max_qp, settings.most_pairs))
            keep(found)
        told = 1
        for shared in (False, True):
            for threads in settings.threads:
                rate = f"{found.creation[-1].per_second.value:.0f} queue pairs/s, " if found.creation else ""
                told += 1
                progress(bar(told, steps, f"{rate}{threads} threads"))
                each, rounds = settings.pairs_per_thread, settings.rounds
                try:
                    with tracing.span(tracing.STAGES, f"{threads} threads", shared_receive_queue=int(shared)):
                        row = connections.time_creation(pairs, threads, each, rounds, shared=shared)
                except PairRefusedError as error:
                    what = f"{threads} threads{' with a shared receive queue' if shared else ''}"
                    found.missing.append(f"{what}, {threads * each} queue pairs: refused: {error}")
                else:
                    found.creation.append(row)
    progress(bar(told + 1, steps, "sharing"))
    with tracing.span(tracing.STAGES, "sharing"):
        kinds = (openers or sharing.openers)(_driver(choice.device))
        found.sharing = sharing.probe_sharing(choice.device, settings.rounds, kinds)
    return found


def _driver(device: str) -> str:
    drivers = {one.name: one.driver for one in read_devices().devices}
    found = drivers.get(device, Missing("unknown"))
    return "an unknown driver" if isinstance(found, Missing) else found
