"""Every layout of every size by turns, each transfer verified byte by byte, then the cost of a descriptor."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kvdiag.derive.intervals import metric
from kvdiag.model.probe_kv import KvCost, KvRow, Prediction
from kvdiag_probes import pattern, tracing
from kvdiag_probes.budget import Budget
from kvdiag_probes.datapath import Operation
from kvdiag_probes.errors import PayloadMismatchError
from kvdiag_probes.kv.cost import doubt, fit, predict
from kvdiag_probes.kv.path import KvPath, Timing
from kvdiag_probes.kv.shapes import Shape
from kvdiag_probes.progress import bar

_FITTED = ("block", "coalesced", "contiguous")


@dataclass(slots=True)
class Samples:
    """The timings of every round by operation and shape (their place in `shapes`), and the bytes that were moved."""

    shapes: list[Shape]
    timings: dict[tuple[str, int], list[Timing]] = field(default_factory=lambda: defaultdict(list))
    moved: dict[Operation, int] = field(default_factory=lambda: defaultdict(int))


def measure(
    path: KvPath,
    shapes: Sequence[Shape],
    operations: Sequence[Operation],
    rounds: int,
    repeats: int,
    timeout_s: float,
    budget: Budget,
    progress: Callable[[str], None] = lambda _: None,
    samples: Samples | None = None,
) -> Samples:
    """Move each shape `repeats` times a round, every other round in reverse order, after one round that is not counted.

    With a budget the repeats are cut into bursts, with pauses between them.
    PayloadMismatchError where the target's memory is not what the blocks should have made of it. `samples`, made of
    the shapes, keeps what was measured before a failure.
    """
    samples = samples or Samples(list(shapes))
    work = [(operation, place, shape) for operation in operations for place, shape in enumerate(shapes)]
    seed = 0
    rate: float | None = None
    for number in range(-1, rounds):
        for operation, place, shape in work if number % 2 == 0 else work[::-1]:
            where = f"round {max(number, 0) + 1} of {rounds}: {operation} {_described(shape)}"
            progress(bar(seed / 2, (rounds + 1) * len(work), where, rate))
            seed += 2
            with tracing.span(tracing.ROUNDS, f"{operation} {_described(shape)}", round=max(number, 0) + 1):
                timing = _verified(path, operation, shape, seed, timeout_s, repeats, budget)
            rate = shape.bytes / timing.total_s
            if number >= 0:
                samples.timings[operation, place].append(timing)
            samples.moved[operation] += shape.bytes * repeats
            budget.spend(shape.bytes * _bursts(shape, repeats, budget)[-1], lambda: path.digest(1, far=True))
    return samples


def rows(samples: Samples) -> tuple[KvRow, ...]:
    """Return each layout's medians, its bandwidth beside the contiguous transfer's of the same round."""
    found = []
    places = {shape.key: place for place, shape in enumerate(samples.shapes)}
    for (operation, place), timings in samples.timings.items():
        shape = samples.shapes[place]
        whole = samples.timings.get((operation, places.get(("contiguous", shape.tokens, shape.pair), place))) or timings
        pair = "all" if shape.pair is None else "{}-{}".format(*shape.pair)
        name = f"{operation}.{shape.mode}.{shape.tokens}.{pair}"
        stages = {
            stage: metric(f"{name}.{stage}", "seconds", "lower", [getattr(one, f"{stage}_s") for one in timings])
            for stage in ("build", "post", "wire", "poll", "total")
        }
        rates = [shape.bytes / one.total_s for one in timings]
        ratios = [other.total_s / one.total_s for one, other in zip(timings, whole, strict=False)]
        found.append(
            KvRow(
                operation=operation,
                pair=shape.pair,
                mode=shape.mode,
                tokens=shape.tokens,
                descriptors=shape.descriptors,
                bytes=shape.bytes,
                fastest_s=min(one.total_s for one in timings),
                bandwidth=metric(f"{name}.bandwidth", "bytes_per_second", "higher", rates),
                of_contiguous=metric(f"{name}.of_contiguous", "ratio", "higher", ratios),
                **stages,
            )
        )
    return tuple(sorted(found, key=lambda row: (row.operation, row.pair is None, row.pair, row.tokens)))


def costs(samples: Samples, held_out: int | None) -> tuple[KvCost, ...]:
    """Fit each operation's cost without the size `held_out` (tokens), and predict that size.

    The fastest round of a point is taken: what slows a round down is not the cost of its descriptors.
    """
    found = []
    for operation in dict.fromkeys(key[0] for key in samples.timings):
        points: list[tuple[Shape, float]] = []
        unseen: list[tuple[Shape, float]] = []
        for place, shape in enumerate(samples.shapes):
            timings = samples.timings.get((operation, place))
            if shape.mode not in _FITTED or not timings:
                continue
            fastest = min(one.total_s for one in timings)
            (unseen if shape.tokens == held_out else points).append((shape, fastest))
        if not points:
            continue
        model = fit([(shape.descriptors, shape.bytes, seconds) for shape, seconds in points])
        predictions = []
        for shape, seconds in unseen:
            expected = predict(model, shape.descriptors, shape.bytes)
            predictions.append(
                Prediction(
                    pair=shape.pair,
                    mode=shape.mode,
                    tokens=shape.tokens,
                    predicted_s=expected,
                    measured_s=seconds,
                    relative_error=(expected - seconds) / seconds,
                )
            )
        found.append(
            KvCost(
                operation=operation,
                model=model,
                predictions=tuple(predictions),
                doubt=doubt(model, predictions),
            )
        )
    return tuple(found)


def _verified(
    path: KvPath, operation: Operation, shape: Shape, seed: int, timeout_s: float, repeats: int, budget: Budget
) -> Timing:
    writing = operation is Operation.WRITE
    path.fill(seed, shape.source_bytes, far=not writing)
    path.fill(seed + 1, shape.target_bytes, far=writing)
    timings = []
    *bursts, last = _bursts(shape, repeats, budget)
    for count in bursts:
        timings.append(_transfer(path, operation, shape, timeout_s, count))
        budget.spend(shape.bytes * count, lambda: path.digest(1, far=True))
    started_s = time.perf_counter()
    timings.append(_transfer(path, operation, shape, timeout_s, last))
    timing = min(timings, key=lambda one: one.total_s)
    # Posting, waiting and polling take turns: the fastest transfer's sums are laid end to end.
    for stage in ("build", "post", "wire", "poll"):
        seconds = getattr(timing, f"{stage}_s")
        tracing.add("stages of the fastest, summed", stage, started_s, seconds)
        started_s += seconds
    found = path.digest(shape.target_bytes, far=writing)
    expected = _expected(shape, seed)
    if found != expected:
        raise PayloadMismatchError(
            f"{operation.upper()} of {shape.descriptors} descriptors ({_described(shape)}) delivered "
            f"wrong bytes: digest {found}, not {expected}; next: repeat with --transport tcp, suspect memory or driver"
        )
    return timing


def _transfer(path: KvPath, operation: Operation, shape: Shape, timeout_s: float, repeats: int) -> Timing:
    started_s = time.perf_counter()
    timing = path.transfer(operation, shape.groups, timeout_s, repeats)
    elapsed_s = time.perf_counter() - started_s
    name = f"{operation.upper()}, {repeats} times"
    tracing.add(tracing.OPERATIONS, name, started_s, elapsed_s, descriptors=shape.descriptors, bytes=shape.bytes)
    tracing.rate(tracing.THROUGHPUT, started_s, elapsed_s, repeats * shape.bytes)
    return timing


def _bursts(shape: Shape, repeats: int, budget: Budget) -> list[int]:
    """Return how many transfers of a list follow each other at a time."""
    most = budget.burst(shape.bytes, repeats)
    return [min(most, repeats - done) for done in range(0, repeats, most)]


def _expected(shape: Shape, seed: int) -> str:
    source, target = bytearray(shape.source_bytes), bytearray(shape.target_bytes)
    pattern.fill(memoryview(source), seed)
    pattern.fill(memoryview(target), seed + 1)
    images = np.frombuffer(source, np.uint8), np.frombuffer(target, np.uint8)
    for group in shape.groups:
        for block in group:
            images[1][block.target : block.target + block.length] = images[0][
                block.source : block.source + block.length
            ]
    return pattern.digest(memoryview(target))


def _described(shape: Shape) -> str:
    ranks = "all ranks" if shape.pair is None else f"ranks {shape.pair[0]} -> {shape.pair[1]}"
    return f"{shape.mode}, {shape.tokens} tokens, {ranks}"
