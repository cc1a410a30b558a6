"""A simulated cluster for judging diagnose: several prefill and decode nodes, one fault (or two, or none), known truth.

Requests pass through batched prefill, KV slots, transfer slots, connections, registration, handles, posting, shared
NICs. The truth is the same world simulated again with the same random draws and without the fault.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

START_S = 1_770_000_000.0
FAULTS = (
    "cache.multi_turn_recompute",
    "cache.prefix_miss",
    "connection.exhaustion",
    "connection.setup",
    "fabric.congestion",
    "fabric.incast",
    "fabric.link_degraded",
    "fabric.loss",
    "fabric.tcp_fallback",
    "layout.fragmented",
    "registration.cache_miss",
    "registration.on_path",
    "schedule.decode_admission",
    "schedule.prefill_queue",
    "schedule.serial_pull",
    "workload.prefill_batch",
    "workload.prompt_length",
)
UNKNOWN = "unknown"
"""Prefill computes slower on one node, for a reason that no cause of the list covers."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """`faults` maps ids to sizes (0: no effect; seconds grow with it); `start` is the share of time before them.

    `drift` multiplies arrivals and prompts after the start; `duty` is the share of time in which the fault acts
    then, in bursts (1: all the time).
    """

    seed: int
    faults: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 600.0
    rate: float = 8.0
    prefills: int = 3
    decodes: int = 3
    link_gbps: float = 100.0
    start: float = 0.4
    duty: float = 1.0
    drift: tuple[float, float] = (1.0, 1.0)


@dataclass(eq=False)
class Draws:
    """Every random number of a world, drawn once, so that worlds with and without a fault share them."""

    arrival: Floats
    prompt: Floats
    turn: Floats
    hit: Floats
    prefill: NDArray[np.int64]
    decode: NDArray[np.int64]
    uniform: Floats
    noise: Floats
    hold: Floats
    active: NDArray[np.bool_]
    late: NDArray[np.bool_]


@dataclass(eq=False)
class Traffic:
    """What happened: stage seconds by name, the columns of a bundle's rows, and events (time, node, metric, amount)."""

    stages: dict[str, Floats]
    columns: dict[str, Floats]
    prefill: NDArray[np.int64]
    decode: NDArray[np.int64]
    done: Floats
    transfer: tuple[Floats, Floats]
    active: NDArray[np.bool_]
    sick: tuple[int, int]
    events: list[tuple[float, str, str, float]]

    @property
    def ttft(self) -> Floats:
        total: Floats = np.sum(list(self.stages.values()), axis=0)
        return total


def draw(world: Cluster) -> Draws:
    """Draw a world's random numbers."""
    random = np.random.default_rng(world.seed)
    count = int(world.rate * world.seconds * 1.6) + 50
    extra = world.faults.get("schedule.prefill_queue", 0.0)
    arrival = np.cumsum(random.exponential(1 / world.rate, count))
    period = random.uniform(80, 200)
    arrival += 0.12 * period / 6.28 * np.sin(6.28 * arrival / period + random.uniform(0, 6.28))
    arrival = np.sort(np.maximum(arrival, 0.0))
    begin = world.start * world.seconds
    faster = world.drift[0]
    arrival = np.where(arrival > begin, begin + (arrival - begin) / faster, arrival)
    if extra:
        more = 1 + 0.4 * min(extra, 2.0)
        arrival = np.where(arrival > begin, begin + (arrival - begin) / more, arrival)
    arrival = arrival[arrival < world.seconds]
    count = len(arrival)
    late = arrival >= begin
    prompt = np.clip(random.lognormal(7.3, 0.6, count), 64, 16000)
    prompt = np.where(late, prompt * world.drift[1], prompt)
    cycle = 60.0
    active = late & (((arrival - begin) % cycle) < world.duty * cycle)
    return Draws(
        arrival=arrival,
        prompt=prompt.astype(np.float64),
        turn=random.geometric(0.45, count).astype(np.float64),
        hit=random.beta(5, 3, count),
        prefill=random.integers(0, world.prefills, count),
        decode=random.integers(0, world.decodes, count),
        uniform=random.random((count, 8)),
        noise=random.lognormal(0, 0.12, (count, 8)),
        hold=random.lognormal(1.0, 0.5, count),
        active=active,
        late=late,
    )


def run(world: Cluster, draws: Draws) -> Traffic:
    """Simulate the world on these draws."""
    f = world.faults
    n = len(draws.arrival)
    sick = (world.seed % world.prefills, world.seed % world.decodes)
    on = draws.active
    prompt: Floats = draws.prompt * np.where(on, 1 + 0.8 * f.get("workload.prompt_length", 0.0), 1.0)
    first = draws.turn <= 1
    hit = np.where(first, 0.15, 0.75) * (0.7 + 0.6 * draws.hit)
    if "cache.prefix_miss" in f:
        hit = np.where(on, hit * max(0.0, 1 - f["cache.prefix_miss"]), hit)
    if "cache.multi_turn_recompute" in f:
        hit = np.where(on & ~first, hit * max(0.0, 1 - f["cache.multi_turn_recompute"]), hit)
    uncached: Floats = np.maximum(prompt * (1 - np.clip(hit, 0, 0.95)), 16)
    size: Floats = prompt * 131072.0
    decode = draws.decode.copy()
    if "fabric.incast" in f:
        decode = np.where(on & (draws.uniform[:, 0] < min(0.9, 0.4 * f["fabric.incast"])), sick[1], decode)
    events: list[tuple[float, str, str, float]] = []
    queue, prefill, batch_tokens, batch_requests = _prefill(world, draws, uncached, sick, events)
    ready = draws.arrival + queue + prefill
    names = ("admit_s", "pull_wait_s", "setup_s", "register_s", "handle_s", "post_s", "wire_s")
    stages = {name: np.zeros(n) for name in names}
    pages: Floats = np.maximum(np.ceil(size / 262144.0), 1)
    descriptors: Floats = (
        np.where(on, pages * (1 + 40 * f["layout.fragmented"]), pages) if "layout.fragmented" in f else pages
    )
    slots: list[list[float]] = [[] for _ in range(world.decodes)]
    pulls: list[list[float]] = [[] for _ in range(world.decodes)]
    handles: list[list[float]] = [[] for _ in range(world.decodes)]
    running: dict[tuple[str, int], list[float]] = {}
    connected: set[tuple[int, int]] = set()
    begun, ended = np.zeros(n), np.zeros(n)
    held = world.rate / world.decodes * 3.1  # slots in use at the mean rate
    for i in np.argsort(ready, kind="stable").tolist():
        p, d, u, noise, hot = int(draws.prefill[i]), int(decode[i]), draws.uniform[i], draws.noise[i], bool(on[i])
        at = float(ready[i])
        limit = int(6 * held) + 6
        if hot and "schedule.decode_admission" in f:
            limit = max(2, int(held * (0.95 + 0.9 / (1 + 3 * f["schedule.decode_admission"]))))
        at = _take(stages["admit_s"], i, at, slots[d], limit)
        serial = hot and "schedule.serial_pull" in f
        at = _take(stages["pull_wait_s"], i, at, pulls[d], 1 if serial else 16)
        if (p, d) not in connected or (hot and "connection.setup" in f and u[1] < min(1.0, f["connection.setup"])):
            stages["setup_s"][i] = 0.07 * max(1.0, f.get("connection.setup", 0.0) if hot else 0.0) * noise[1]
            events += [(at, f"d{d}", "conn.qp_created", 2.0), (at, f"p{p}", "conn.qp_created", 2.0)]
        connected.add((p, d))
        at += stages["setup_s"][i]
        here = hot and d == sick[1]
        share = max(f.get("registration.on_path", 0.0), f.get("registration.cache_miss", 0.0))
        if (here and share and u[2] < 0.7) or u[2] > 0.995:
            spent = (0.01 + size[i] * 2e-10) * (max(share, 0.05) * 3 if here and share else 1) * noise[2]
            stages["register_s"][i] = spent
            events += [(at, f"d{d}", "reg.mr_registered", 3.0), (at, f"d{d}", "reg.mr_register_us", spent * 1e6)]
            if "registration.cache_miss" in f or u[2] > 0.997:
                events.append((at, f"d{d}", "reg.cache_misses", 2.0))
        at += stages["register_s"][i]
        if here and "connection.exhaustion" in f:
            before = at
            at = _take(stages["handle_s"], i, at, handles[d], 1)
            if at > before:
                events.append((before, f"d{d}", "conn.handle_alloc_failures", float(np.ceil((at - before) / 0.005))))
        stages["post_s"][i] = (2e-4 + descriptors[i] * 3e-6) * noise[3]
        at += stages["post_s"][i]
        wire = _wire(world, f, i, at, p, d, u, noise, hot, sick, size[i], float(descriptors[i]), running, events)
        stages["wire_s"][i] = wire
        begun[i], ended[i] = at, at + wire
        heappush(slots[d], at + wire + float(draws.hold[i]))
        heappush(pulls[d], at + wire + (0.2 * f["schedule.serial_pull"] if serial else 0.0))
        if here and "connection.exhaustion" in f:
            heappush(handles[d], at + wire + 0.3 * f["connection.exhaustion"] * noise[4])
        events += [(at + wire, f"d{d}", "nic.rx_bytes", size[i]), (at + wire, f"p{p}", "nic.tx_bytes", size[i])]
    recorded: dict[str, Floats] = {"queue_s": queue, "prefill_s": prefill, **stages}
    recorded["first_step_s"] = 0.025 * draws.noise[:, 7]
    columns: dict[str, Floats] = {
        "arrival_s": draws.arrival,
        "prompt_tokens": np.round(prompt),
        "uncached_tokens": np.round(uncached),
        "turn": draws.turn,
        "bytes": size,
        "descriptors": np.round(descriptors),
        "batch_tokens": batch_tokens,
        "batch_requests": batch_requests,
    }
    return Traffic(recorded, columns, draws.prefill, decode, ended, (begun, ended), on, sick, events)


def _take(stage: Floats, i: int, at: float, busy: list[float], limit: int) -> float:
    """Wait until fewer than `limit` of the busy places are taken; the place itself is taken by the caller."""
    begin = at
    while busy and busy[0] <= at:
        heappop(busy)
    while len(busy) >= limit:
        at = max(at, heappop(busy))
    stage[i] = at - begin
    return at


def _prefill(
    world: Cluster, draws: Draws, uncached: Floats, sick: tuple[int, int], events: list[tuple[float, str, str, float]]
) -> tuple[Floats, Floats, Floats, Floats]:
    """Serve each prefill node's queue in batches; a batch takes seconds per token, of all of its requests."""
    f, n = world.faults, len(draws.arrival)
    queue, prefill, tokens, requests = np.zeros(n), np.zeros(n), np.zeros(n), np.ones(n)
    speed = 0.62 * world.prefills / (world.rate * 1050.0)  # utilisation of about 0.62 at the mean rate
    for node in range(world.prefills):
        rows = np.flatnonzero(draws.prefill == node).tolist()
        free, k = 0.0, 0
        while k < len(rows):
            i = rows[k]
            begin = max(free, float(draws.arrival[i]))
            hot = bool(draws.active[i])
            linger = 0.0
            if hot and "workload.prefill_batch" in f:
                linger = 0.5 * f["workload.prefill_batch"]
            batch = [i]
            while k + len(batch) < len(rows) and draws.arrival[rows[k + len(batch)]] <= begin + linger:
                if len(batch) >= (12 if linger else 4):
                    break
                batch.append(rows[k + len(batch)])
            begin = max(begin, float(draws.arrival[batch[-1]]))
            amount = float(uncached[batch].sum())
            slow = 1 + 0.5 * f.get(UNKNOWN, 0.0) if hot and node == sick[0] else 1.0
            spent = (0.01 + amount * speed * slow) * float(draws.noise[i, 6])
            for row in batch:
                queue[row], prefill[row] = max(begin - float(draws.arrival[row]), 0.0), spent
                tokens[row], requests[row] = amount, len(batch)
            events.append((begin, f"p{node}", "engine.prefill_tokens", amount))
            events += [(float(draws.arrival[row]), f"p{node}", "engine.arrivals", 1.0) for row in batch]
            free = begin + spent
            k += len(batch)
    return queue, prefill, tokens, requests


def _wire(
    world: Cluster,
    f: Mapping[str, float],
    i: int,
    at: float,
    p: int,
    d: int,
    u: Floats,
    noise: Floats,
    hot: bool,
    sick: tuple[int, int],
    size: float,
    descriptors: float,
    running: dict[tuple[str, int], list[float]],
    events: list[tuple[float, str, str, float]],
) -> float:
    """Return the seconds of one transfer over the NICs that it shares with those running at its start."""
    beside = 0
    for key in (("p", p), ("d", d)):
        ends = running.setdefault(key, [])
        while ends and ends[0] <= at:
            heappop(ends)
        beside = max(beside, len(ends))
    speed = world.link_gbps * 1e9 / 8 * 0.55
    here = hot and d == sick[1]
    if here and "fabric.link_degraded" in f:
        speed /= 1 + 4 * f["fabric.link_degraded"]
    tcp = here and "fabric.tcp_fallback" in f
    if tcp:
        speed /= 1 + 8 * f["fabric.tcp_fallback"]
    bare = size / speed + descriptors * 1.5e-6
    wire = (4e-4 + bare * (1 + beside)) * noise[5]
    if here and "fabric.congestion" in f:
        slower = 4 * f["fabric.congestion"] * float(noise[0])
        paused = slower / (1 + slower)
        wire *= 1 + slower
        events += [(at, f"d{d}", "nic.pause_us", paused * wire * 1e6), (at, f"d{d}", "nic.cnp", 900 * wire)]
    events += [(at, f"d{d}", "nic.cnp", 3 * (1 + beside) * float(u[3])), (at, f"p{p}", "nic.cnp", 2 * float(u[4]))]
    if here and "fabric.loss" in f:
        lost = int(np.floor(size / 4e7 * f["fabric.loss"] * 2 * float(u[5]) + float(u[6])))
        wire += lost * 0.03 * float(noise[4])
        for metric, times in (("nic.out_of_sequence", 4), ("nic.retransmits", 3), ("nic.ack_timeouts", 1)):
            events.append((at, f"d{d}", metric, float(lost * times)))
    if tcp:
        events.append((at + wire, f"d{d}", "host.tcp_rx_bytes", size))
        events.append((at + wire, f"d{d}", "nic.rx_bytes", -size))
    for key in (("p", p), ("d", d)):
        heappush(running[key], at + wire)
    return float(wire)


def without_fault(world: Cluster) -> Cluster:
    """Return the same world, healthy (a drift of load or prompts stays: it is no fault)."""
    return replace(world, faults={})
