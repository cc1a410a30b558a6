"""The part of `kvdiag probe connections` that needs no peer."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field

from kvdiag.errors import UndeterminedError
from kvdiag.model.probe_connections import ConnectionsSettings, CreationRow, Exhaustion, SetupRow
from kvdiag_probes import connections
from kvdiag_probes.gid import Choice
from kvdiag_probes.ib_pairs import PairRefusedError, Pairs
from kvdiag_probes.libibverbs import Domain


@dataclass(slots=True, kw_only=True)
class Local:
    setup: tuple[SetupRow, ...]
    exhaustion: Exhaustion
    creation: list[CreationRow] = field(default_factory=list)
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
) -> Local:
    """Measure set-up, creation by threads and the limit; UndeterminedError where not one pair can be connected.

    What the device refuses (a shared receive queue, so many pairs at once) is named as missing.
    """
    with opened(choice) as (pairs, max_qp):
        progress("set-up")
        try:
            setup = connections.time_setup(pairs, settings.rounds)
        except PairRefusedError as error:
            raise UndeterminedError(
                f"{choice.name}: no queue pair can be connected to another of this port: {error}; "
                "see `rdma resource show` for what is in use"
            ) from error
        progress("limit")
        found = Local(setup=setup, exhaustion=connections.exhaust(pairs, max_qp, settings.most_pairs))
        for shared in (False, True):
            for threads in settings.threads:
                progress(f"{threads} threads")
                each, rounds = settings.pairs_per_thread, settings.rounds
                try:
                    row = connections.time_creation(pairs, threads, each, rounds, shared=shared)
                except PairRefusedError as error:
                    what = f"{threads} threads{' with a shared receive queue' if shared else ''}"
                    found.missing.append(f"{what}, {threads * each} queue pairs: refused: {error}")
                else:
                    found.creation.append(row)
    return found
