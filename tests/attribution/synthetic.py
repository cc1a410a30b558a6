"""Requests of one prefill and one decode process on a busy two-core machine, with or without a fault half-way.

`serial`: one request at a time holds the worker from compute to first step. `slot`: the worker is held through compute
only, and one transfer slot through register, post and wire. Neither: nothing waits. Every CPU stage suffers from the
scheduler: log-normal jitter, rare stalls with a heavy tail, and seconds in which a neighbour slows all of it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvdiag.model.bundle import Bundle, CounterSeries, Labels, MetricInfo, RequestColumns

Floats = NDArray[np.float64]

START_S = 1_760_000_000.0
BLOCK_BYTES = 256 * 1024
BYTES_PER_TOKEN = 16 * 1024
LINK_BYTES_PER_S = 1.2e9


@dataclass(frozen=True, kw_only=True)
class World:
    """`size` scales the fault; `noise` the scheduler; drifts multiply arrivals and prompts in the second half;
    `neighbour` slows every CPU stage of the second half; `always`: the fault is there from the first request.
    """

    seed: int
    fault: str = "none"
    size: float = 1.0
    requests: int = 500
    seconds: float = 60.0
    noise: float = 1.0
    arrivals_drift: float = 1.0
    prompt_drift: float = 1.0
    neighbour: float = 1.0
    serial: bool = True
    slot: bool = False
    turnaround_s: float = 0.0
    registered_bytes: bool = False
    counters: bool = True
    always: bool = False


def simulate(world: World) -> Bundle:
    """Return the bundle that the recorder would have written."""
    random = np.random.default_rng(world.seed)
    count = world.requests
    half = world.seconds / 2
    rate = count / world.seconds
    gaps = random.exponential(1 / rate, count * 2)
    arrival = np.cumsum(gaps)
    arrival = np.where(arrival > half, half + (arrival - half) / world.arrivals_drift, arrival)
    arrival = arrival[arrival < world.seconds]
    count = len(arrival)
    late = arrival >= (-1.0 if world.always else half)
    tokens = random.choice([256, 512, 1024, 2048, 4096], size=count, p=[0.25, 0.3, 0.25, 0.15, 0.05]).astype(float)
    tokens *= random.uniform(0.8, 1.2, count)
    tokens = np.round(tokens * np.where(late, world.prompt_drift, 1.0))
    size = tokens * BYTES_PER_TOKEN
    slow = _neighbour(random, arrival, world)
    descriptors = np.ceil(size / BLOCK_BYTES)
    if world.fault == "layout":
        descriptors = np.where(late, np.ceil(size / (BLOCK_BYTES / 64)), descriptors)
    prefill = 0.015 + tokens * 1.5e-5 + _stalls(random, count, world)
    register = np.full(count, 1e-5)
    if world.fault == "registration":
        register = np.where(late, world.size * (0.002 + size * 4e-10), register)
    register = register * slow * _jitter(random, count, world) + 0.2 * _stalls(random, count, world)
    post = (1e-4 + descriptors * 4e-6 * (world.size if world.fault == "layout" else 1)) * slow
    post = post * _jitter(random, count, world) + 0.2 * _stalls(random, count, world)
    wire = (3e-4 + size / LINK_BYTES_PER_S + descriptors * 1.5e-6) * slow * _jitter(random, count, world)
    wire += _stalls(random, count, world)
    if world.fault == "link":
        limit = LINK_BYTES_PER_S / (1 + 5 * world.size)
        wire = np.where(late, np.maximum(wire, size / limit * random.uniform(1.0, 1.03, count)), wire)
    first = 0.004 * slow * _jitter(random, count, world) + _stalls(random, count, world)
    if world.fault == "loss":  # at first the sender finds no speed at all, then some transfers wait to send again
        worst = world.size * np.where(arrival < half + world.seconds / 10, 0.3, 0.06)
        wire += np.where(late & (random.random(count) < 0.5), random.exponential(worst), 0.0)
    if world.fault == "delay":
        wire += np.where(late, 0.02 * world.size, 0.0)
    if world.fault == "pause":  # for a quarter of the time nothing is seen to arrive
        wire = np.where(late & ((arrival + wire) % 1.6 < 0.4), wire + 0.4 - (arrival + wire) % 1.6, wire)
    held = prefill + register + post + wire + first
    queue, pull = np.zeros(count), np.zeros(count)
    if world.serial:
        queue = _waits(arrival, held)
    elif world.slot:
        queue = _waits(arrival, prefill)
        pull = 5e-4 + _waits(arrival + queue + prefill, register + post + wire + world.turnaround_s)
    numbers = {
        "arrival_s": START_S + arrival,
        "ttft_s": queue + pull + held,
        "queue_s": queue,
        "prefill_s": prefill,
        "pull_wait_s": pull,
        "register_s": register,
        "post_s": post,
        "wire_s": wire,
        "first_step_s": first,
        "prompt_tokens": tokens,
        "bytes": size,
        "descriptors": descriptors,
    }
    requests = RequestColumns(
        ids=[f"r{index}" for index in range(count)],
        numbers=numbers,
        labels={
            "prefill_node": Labels(("prefill",), np.zeros(count, dtype=np.int32)),
            "decode_node": Labels(("decode",), np.zeros(count, dtype=np.int32)),
        },
    )
    done = arrival + queue + prefill + pull + register + post + wire
    series = _counters(random, world, done, size, register, late) if world.counters else ()
    return Bundle(
        origin=f"synthetic {world}",
        requests=requests,
        series=series,
        metrics={one.metric: MetricInfo(kind="counter", unit="") for one in series},
        roles={"prefill": "prefill", "decode": "decode"},
        sampling=1.0,
        incident_start_s=None if world.always else START_S + half,
    )


def _jitter(random: np.random.Generator, count: int, world: World) -> Floats:
    return random.lognormal(0, 0.2 * world.noise, count)


def _stalls(random: np.random.Generator, count: int, world: World) -> Floats:
    """Three in a hundred operations lose their core for milliseconds, with a Pareto tail cut at 0.3 s."""
    lost = np.minimum(0.004 * (1 + random.pareto(1.5, count)), 0.3)
    return np.where(random.random(count) < 0.03 * world.noise, lost, 0.0) * world.noise


def _neighbour(random: np.random.Generator, arrival: Floats, world: World) -> Floats:
    """Up to four times a minute something else takes the cores for two to five seconds."""
    slow = np.where(arrival >= world.seconds / 2, world.neighbour, 1.0)
    for start in random.uniform(0, world.seconds, random.integers(0, 5)):
        inside = (arrival > start) & (arrival < start + random.uniform(2, 5))
        slow = np.where(inside, slow * (1 + random.uniform(0.3, 1.5) * world.noise), slow)
    return slow


def _waits(arrival: Floats, held: Floats) -> Floats:
    waits = np.zeros(len(arrival))
    free = -np.inf
    for index, (at, service) in enumerate(zip(arrival, held, strict=True)):
        waits[index] = max(0.0, free - at)
        free = at + waits[index] + service
    return waits


def _counters(
    random: np.random.Generator, world: World, done: Floats, size: Floats, register: Floats, late: NDArray[np.bool_]
) -> tuple[CounterSeries, ...]:
    """Once a second: bytes at both NICs, registrations and their time at the decode node."""
    time_s = np.arange(0.0, world.seconds + 1.0) + random.uniform(0, 0.2)
    index = np.searchsorted(np.sort(done), time_s)
    order = np.argsort(done)
    moved = np.concatenate([[0.0], np.cumsum(size[order])])[index]
    slowed = late & (world.fault in ("link", "layout"))
    lost = 20.0 * (late & (world.fault == "loss"))
    resent = np.concatenate([[0.0], np.cumsum(random.poisson(0.01 + slowed * 0.5 + lost)[order])])[index]
    registered = np.where(late & (world.fault == "registration"), 1.0, 0.0)
    if world.registered_bytes:
        amount = 8e9 + np.concatenate([[0.0], np.cumsum((size * registered)[order])])[index]
        registrations = {("decode", "nixl.registered_bytes"): amount}
    else:
        registrations = {
            ("decode", "reg.mr_registered"): 4 + np.concatenate([[0.0], np.cumsum(registered[order])])[index],
            ("decode", "reg.mr_register_us"): 9e3
            + np.concatenate([[0.0], np.cumsum((register * registered)[order])])[index] * 1e6,
        }
    curves = {
        ("prefill", "nic.tx_bytes"): moved * 1.02,
        ("decode", "nic.rx_bytes"): moved * 1.02,
        ("prefill", "nic.retransmits"): resent,
        **registrations,
    }
    return tuple(
        CounterSeries(node=node, device=None, metric=metric, time_s=START_S + time_s, value=value)
        for (node, metric), value in curves.items()
    )
