"""RDMA WRITE, RDMA READ and TCP over one pair of nodes, by turns in every round, so that a drift hits all alike."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvdiag.derive.intervals import metric
from kvdiag.errors import UndeterminedError
from kvdiag.model.missing import Missing
from kvdiag.model.probe import ProbeEnds, TransportProof
from kvdiag.model.probe_compare import MethodProof, MethodResult
from kvdiag_probes import tracing
from kvdiag_probes.budget import Budget
from kvdiag_probes.rdma_path import read_devices
from kvdiag_probes.session import ProbeOptions, ProbeResult, run_probe

METHODS = ("rdma-write", "rdma-read", "tcp-write", "tcp-read")
_GRAVITY = ("contradicted", "not_observable", "proved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    ends: ProbeEnds
    results: tuple[MethodResult, ...]
    proofs: tuple[MethodProof, ...]


def compare(
    options: ProbeOptions,
    methods: Sequence[str],
    rounds: int,
    budget: Budget,
    run: Callable[[ProbeOptions], ProbeResult] = run_probe,
) -> Comparison:
    """Run each method once a round, every other round in the reverse order; errors are those of `run_probe`.

    UndeterminedError where RDMA is asked for and cannot be had: nothing is compared then.
    """
    found: dict[str, list[ProbeResult]] = defaultdict(list)
    collect(options, methods, rounds, budget, found, run)
    return summarise(options, methods, found)


def collect(
    options: ProbeOptions,
    methods: Sequence[str],
    rounds: int,
    budget: Budget,
    found: dict[str, list[ProbeResult]],
    run: Callable[[ProbeOptions], ProbeResult] = run_probe,
) -> None:
    """Run the rounds, each result into `found` by its method: what was measured before a failure is there."""
    for number in range(rounds):
        for method in methods if number % 2 == 0 else methods[::-1]:
            where = f"round {number + 1} of {rounds}, {method} "
            options.progress(where)
            with tracing.span(tracing.ROUNDS, method, round=number + 1), budget.in_force():
                found[method].append(_once(within(options, where), method, run))


def summarise(options: ProbeOptions, methods: Sequence[str], found: dict[str, list[ProbeResult]]) -> Comparison:
    """Return the comparison of the rounds in which every method ran; at least one."""
    whole = min(len(found[method]) for method in methods)
    found = {method: results[:whole] for method, results in found.items()}
    reference = found[methods[0]]
    return Comparison(
        ends=next((found[m][0].ends for m in methods if m.startswith("rdma")), reference[0].ends),
        results=tuple(
            _row(method, index, found[method], reference)
            for method in methods
            for index in range(len(options.settings.sizes))
        ),
        proofs=tuple(MethodProof(method=method, proof=_gravest(found[method])) for method in methods),
    )


def link_bytes_per_second(ends: ProbeEnds) -> float | None:
    """Return the rate of this end's RDMA ports together, rails among them, as sysfs shows it; None for TCP and where
    one is not shown.
    """
    if ends.local_device is None:
        return None
    names = {text.partition(" ")[0] for text in (ends.local_device, *ends.rails)}
    rates = {port.name: port.rate_gbps for port in read_devices().ports if port.name in names}
    known = [rate for rate in rates.values() if not isinstance(rate, Missing)]
    return sum(known) * 1e9 / 8 if len(known) == len(names) else None


def within(options: ProbeOptions, where: str) -> ProbeOptions:
    """Return options for one run of several, whose progress says which it is."""
    return replace(options, progress=lambda text: options.progress(f"{where}{text}"))


def _once(options: ProbeOptions, method: str, run: Callable[[ProbeOptions], ProbeResult]) -> ProbeResult:
    transport, _, operation = method.partition("-")
    settings = replace(options.settings, transport=transport, operation=operation)  # type: ignore[arg-type]
    chosen = replace(options, settings=settings)
    if transport == "tcp":
        chosen = replace(chosen, device=None, port=None, gid_index=None)
    try:
        return run(chosen)
    except UndeterminedError as error:
        if transport == "tcp":
            raise
        raise UndeterminedError(f"{method}: {error}; --methods tcp-write,tcp-read compares TCP alone") from error


def _row(method: str, index: int, mine: Sequence[ProbeResult], reference: Sequence[ProbeResult]) -> MethodResult:
    own = [result.results[index] for result in mine]
    first = [result.results[index] for result in reference]
    size = own[0].size_bytes
    name = f"{method}.{size}"
    rates = [one.bytes_per_second for one in own]
    ratios = [one.bytes_per_second / other.bytes_per_second for one, other in zip(own, first, strict=True)]
    return MethodResult(
        method=method,
        size_bytes=size,
        bandwidth=metric(f"{name}.bandwidth", "bytes_per_second", "higher", rates),
        latency_p50=metric(f"{name}.latency_p50", "seconds", "lower", [one.latency_s.p50 for one in own]),
        ratio=metric(f"{name}.ratio", "ratio", "higher", ratios),
    )


def _gravest(results: Sequence[ProbeResult]) -> TransportProof:
    return min((result.proof for result in results), key=lambda proof: _GRAVITY.index(proof.status))
