"""Queue pairs made, connected, exhausted and shared: each figure from calls that are undone before it is returned."""

import errno
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from kvdiag.derive.amounts import seconds
from kvdiag.derive.intervals import metric
from kvdiag.errors import KvdiagError, StoppedError
from kvdiag.model.probe import ProbeEnds
from kvdiag.model.probe_connections import ActiveRow, CreationRow, Exhaustion, FanOut, SetupRow, SharingRow
from kvdiag_probes import tracing
from kvdiag_probes.budget import Budget
from kvdiag_probes.compare import within
from kvdiag_probes.control.client import LostAgentError, RefusedConnectionError
from kvdiag_probes.ib_pairs import PairRefusedError
from kvdiag_probes.session import ProbeOptions, ProbeResult, run_probe

_ENDING = (LostAgentError, RefusedConnectionError, StoppedError)
"""What leaves nothing to go on for: the agent is gone, or the user wants no more."""
Step = Literal["create", "init", "rtr", "rts", "destroy"]
_STEPS: tuple[Step, ...] = ("create", "init", "rtr", "rts", "destroy")


class Maker(Protocol):
    """What makes queue pairs."""

    def create(self, shared: Any = None) -> Any: ...

    def to_init(self, pair: Any) -> None: ...

    def to_rtr(self, pair: Any, other: Any) -> None: ...

    def to_rts(self, pair: Any) -> None: ...

    def destroy(self, pair: Any) -> None: ...

    def shared_receive_queue(self) -> Any: ...

    def destroy_shared(self, shared: Any) -> None: ...


def time_setup(pairs: Maker, rounds: int) -> tuple[SetupRow, ...]:
    """Connect two queue pairs of this device with each other, `rounds` times; PairRefusedError names the step."""
    taken_s: dict[Step, list[float]] = defaultdict(list)

    def timed(step: Step, call: Callable[[], Any]) -> Any:
        started_s = time.perf_counter()
        made = call()
        taken_s[step].append(time.perf_counter() - started_s)
        tracing.add(tracing.OPERATIONS, step, started_s, taken_s[step][-1])
        return made

    for _ in range(rounds):
        held: list[Any] = []
        try:
            held += [timed("create", pairs.create), pairs.create()]
            one, other = held
            timed("init", lambda one=one: pairs.to_init(one))  # type: ignore[misc]
            pairs.to_init(other)
            timed("rtr", lambda one=one, other=other: pairs.to_rtr(one, other))  # type: ignore[misc]
            timed("rts", lambda one=one: pairs.to_rts(one))  # type: ignore[misc]
        finally:
            if held:
                timed("destroy", lambda held=held: pairs.destroy(held[0]))  # type: ignore[misc]
            for pair in held[1:]:
                pairs.destroy(pair)
    return tuple(
        SetupRow(step=step, seconds=metric(f"setup.{step}", "seconds", "lower", taken_s[step])) for step in _STEPS
    )


def time_creation(pairs: Maker, threads: int, each: int, rounds: int, *, shared: bool) -> CreationRow:
    """Make `each` queue pairs in every thread at once, and destroy them; PairRefusedError as a thread met it."""
    rates = []
    for _ in range(rounds):
        queue = pairs.shared_receive_queue() if shared else None
        held: list[list[Any]] = [[] for _ in range(threads)]
        failures: list[PairRefusedError] = []

        def work(mine: list[Any], queue: Any, failures: list[PairRefusedError]) -> None:
            try:
                for _ in range(each):
                    mine.append(pairs.create(queue))  # noqa: PERF401 - destroyed on error too
            except PairRefusedError as error:
                failures.append(error)

        workers = [threading.Thread(target=work, args=(mine, queue, failures)) for mine in held]
        started_s = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        elapsed_s = time.perf_counter() - started_s
        made = sum(len(mine) for mine in held)
        tracing.add(tracing.OPERATIONS, f"{made} queue pairs by {threads} threads", started_s, elapsed_s)
        tracing.rate("queue pairs per second", started_s, elapsed_s, made)
        for pair in (pair for mine in held for pair in mine):
            pairs.destroy(pair)
        if queue is not None:
            pairs.destroy_shared(queue)
        if failures:
            raise failures[0]
        rates.append(threads * each / elapsed_s)
    name = f"creation.{threads}{'.srq' if shared else ''}"
    return CreationRow(
        threads=threads,
        pairs=threads * each,
        shared_receive_queue=shared,
        per_second=metric(f"{name}.per_second", "count", "higher", rates),
    )


def exhaust(pairs: Maker, max_qp: int, most: int) -> Exhaustion:
    """Make queue pairs until one is refused or there are `most`, destroy them, and see that as many fit again."""
    made, refusal = _fill(pairs, most)
    again, _ = _fill(pairs, made)
    code = None if refusal is None else errno.errorcode.get(refusal, str(refusal))
    return Exhaustion(max_qp=max_qp, made=made, made_again=again, refusal=code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Active:
    """`failures` holds, by the number of queue pairs, why no more was measured with so many."""

    rows: tuple[ActiveRow, ...]
    ends: ProbeEnds
    failures: dict[int, KvdiagError]


def time_active(
    options: ProbeOptions,
    active: Sequence[int],
    in_flight: int,
    rounds: int,
    budget: Budget,
    run: Callable[[ProbeOptions], ProbeResult] = run_probe,
) -> Active:
    """Move the same messages over different numbers of queue pairs by turns, at most `in_flight` of them at a time.

    A number with which a transfer fails is left out from then on; the error of the very first transfer is raised, and
    nothing more is tried where the agent is gone or the user stopped the probe.
    """
    rates: dict[int, list[float]] = defaultdict(list)
    failures: dict[int, KvdiagError] = {}
    results: list[ProbeResult] = []
    for number in range(rounds):
        for count in active if number % 2 == 0 else active[::-1]:
            if count in failures or any(isinstance(error, _ENDING) for error in failures.values()):
                continue
            where = f"round {number + 1} of {rounds}, {count} queue pairs "
            options.progress(where)
            settings = replace(options.settings, queue_pairs=count, queue_depth=max(1, in_flight // count))
            settings = replace(settings, in_flight=in_flight)
            try:
                with tracing.span(tracing.ROUNDS, f"{count} queue pairs", round=number + 1), budget.in_force():
                    results.append(run(replace(within(options, where), settings=settings)))
            except KvdiagError as error:
                if not results:
                    raise
                failures[count] = error
                continue
            rates[count].append(results[-1].results[0].bytes_per_second)
    metrics = {
        count: metric(f"active.{count}.bandwidth", "bytes_per_second", "higher", rates[count])
        for count in active
        if rates[count]
    }
    best = max(one.value for one in metrics.values())
    rows = tuple(
        ActiveRow(
            queue_pairs=count,
            queue_depth=max(1, in_flight // count),
            bandwidth=one,
            of_best=one.value / best,
        )
        for count, one in metrics.items()
    )
    return Active(rows=rows, ends=results[0].ends, failures=failures)


def advise(
    setup: Sequence[SetupRow],
    exhaustion: Exhaustion,
    active: Sequence[ActiveRow],
    sharing: Sequence[SharingRow],
    prefill: int,
    decode: int,
    pairs_per_link: int,
) -> FanOut:
    """Say whether P prefill and D decode instances fit, one adapter each: every prefill is linked to every decode.

    They fit where as many queue pairs were made here at once, and do not where more are needed than were made before a
    refusal, or than the device states (max_qp); between the two it is not known.
    """
    here, there = decode * pairs_per_link, prefill * pairs_per_link
    needed, made = max(here, there), exhaustion.made
    each_s = sum(row.seconds.value for row in setup if row.step != "destroy")
    fits = True if needed <= made else False if exhaustion.refusal or needed > exhaustion.max_qp else None
    parts = [f"{prefill} × {decode} with {pairs_per_link} queue pairs a link: {here} on prefill, {there} on decode"]
    parts.append(f"about {seconds(needed * each_s)} to set up one after another")
    most_peers = made // pairs_per_link
    stated = f"{made} were made here at once, of {most_peers} peers; max_qp says {exhaustion.max_qp}"
    parts.append(stated + (f", {exhaustion.refusal} refused more" if exhaustion.refusal else ""))
    if fits is None:
        parts.append(f"beyond {made} nothing was tried: give --most {needed}")
    if fits is False:
        ways = [row.kind.upper() for row in sharing if row.status == "offered" and row.kind != "srq"]
        shared = f"share them by {' or '.join(ways)}" if ways else "neither XRC nor DC is offered to share them"
        most = (made if exhaustion.refusal else exhaustion.max_qp) // pairs_per_link
        parts.append(f"link groups of at most {most} instances with each other, or add adapters; {shared}")
    near = [row for row in active if row.queue_pairs >= needed] or list(active)[-1:]
    if near:
        parts.append(f"{near[0].queue_pairs} active queue pairs reached {near[0].of_best:.0%} of the best bandwidth")
    return FanOut(
        prefill_pairs=here,
        decode_pairs=there,
        most_peers=most_peers,
        setup_s=needed * each_s,
        fits=fits,
        advice="; ".join(parts),
    )


def _fill(pairs: Maker, most: int) -> tuple[int, int | None]:
    held: list[Any] = []
    try:
        while len(held) < most:
            held.append(pairs.create())
    except PairRefusedError as error:
        return len(held), error.code
    finally:
        for pair in held:
            pairs.destroy(pair)
    return most, None
