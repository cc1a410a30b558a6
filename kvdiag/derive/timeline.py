"""Requests, counters and events of a trace bundle as a timeline."""

import numpy as np

from kvdiag.model.bundle import Bundle, Labels
from kvdiag.model.trace import CounterSample, Instant, Slice, Trace
from kvdiag.model.transfer import STAGES

MOST_REQUESTS = 20_000
"""Viewers become slow beyond some hundred thousand slices; the requests with the longest TTFT are kept."""
MOST_SAMPLES = 200_000
"""Of counters, all series together; series beyond it become means over stretches of time."""
COUNTED = ("bytes", "descriptors", "prompt_tokens", "uncached_tokens", "turn", "batch_tokens")


def timeline(bundle: Bundle) -> Trace:
    """Return every request as a slice of its prefill node, its stages inside it, counters as rates, and events.

    Of more than MOST_REQUESTS requests the slowest are kept, and `about` says so.
    """
    numbers = bundle.requests.numbers
    ttft = numbers["ttft_s"]
    rows = np.arange(len(ttft))
    if len(rows) > MOST_REQUESTS:
        rows = np.sort(np.argsort(ttft)[-MOST_REQUESTS:])
    stages = [name for name in _passed() if name in numbers]
    slices: list[Slice] = []
    for row in rows.tolist():
        process = _node(bundle, "prefill_node", row) or "requests"
        decode = _node(bundle, "decode_node", row)
        at = float(numbers["arrival_s"][row])
        arguments: dict[str, str | int | float] = {
            name: float(numbers[name][row]) for name in COUNTED if name in numbers and np.isfinite(numbers[name][row])
        }
        slices.append(
            Slice(
                process=process,
                track="requests",
                name=bundle.requests.ids[row],
                category="request",
                start_s=at,
                duration_s=float(ttft[row]),
                arguments=arguments | ({"decode_node": decode} if decode else {}),
            )
        )
        for name in stages:
            spent = float(numbers[name][row])
            if np.isfinite(spent) and spent > 0:
                slices.append(
                    Slice(
                        process=process,
                        track="requests",
                        name=name.removesuffix("_s"),
                        category="stage",
                        start_s=at,
                        duration_s=spent,
                    )
                )
                at += spent
    about = {"origin": bundle.origin, "requests": f"{len(rows)} of {len(ttft)}, the slowest"}
    counters, of_all = _counters(bundle)
    if of_all > len(counters):
        about["counter_samples"] = f"{len(counters)} means over time of {of_all}"
    return Trace(slices=tuple(slices), instants=_instants(bundle), counters=counters, about=about)


def _passed() -> tuple[str, ...]:
    """Return the stages in the order in which a request passes them, sums where their parts would be."""
    late = ("pre_transfer_s", "transfer_s", "kv_wait_s")
    return (*(name for name in STAGES if name not in (*late, "first_step_s")), *late, "first_step_s")


def _node(bundle: Bundle, side: str, row: int) -> str:
    label = bundle.requests.labels.get(side, Labels((), np.full(len(bundle.requests), -1, dtype=np.int32)))
    code = int(label.codes[row])
    return label.names[code] if code >= 0 else ""


def _instants(bundle: Bundle) -> tuple[Instant, ...]:
    return tuple(
        Instant(
            process=event.node or "events",
            track="events",
            name=event.kind or "event",
            category="event",
            at_s=event.time_s,
            arguments={"detail": event.detail} if event.detail else {},
        )
        for event in bundle.events
    )


def _counters(bundle: Bundle) -> tuple[tuple[CounterSample, ...], int]:
    """Gauges as read, counters per second between two readings; a reset has no rate. And how many there were."""
    samples: list[CounterSample] = []
    of_all = 0
    most = max(2, MOST_SAMPLES // max(len(bundle.series), 1))
    for one in bundle.series:
        info = bundle.metrics.get(one.metric)
        gauge = info is not None and info.kind == "gauge"
        name = one.metric if one.device is None else f"{one.metric} {one.device}"
        time_s, value = one.time_s, one.value
        if not gauge:
            steps, spans = np.diff(value), np.diff(time_s)
            fine = (steps >= 0) & (spans > 0)
            time_s, value = time_s[1:][fine], steps[fine] / spans[fine]
            name += " per second"
        of_all += len(time_s)
        if len(time_s) > most:
            starts = np.linspace(0, len(time_s), most + 1).astype(int)[:-1]
            value = np.add.reduceat(value, starts) / np.diff(np.append(starts, len(value)))
            time_s = time_s[starts]
        points = zip(time_s.tolist(), value.tolist(), strict=True)
        samples += [CounterSample(process=one.node, name=name, at_s=at, value=reading) for at, reading in points]
    return tuple(samples), of_all
