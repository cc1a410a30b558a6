"""Counter series and events of a trace bundle."""

import numpy as np

from kvdiag.errors import InputError
from kvdiag.model.bundle import BundleEvent, CounterSeries
from kvdiag.sources._tables import Table


def read_counters(table: Table, notes: list[str]) -> tuple[CounterSeries, ...]:
    """Return one series per node, device and metric, sorted by time; rows without a value are left out."""
    if table.rows == 0:
        return ()
    _require(table, ("time_s", "node", "metric", "value"))
    time_s, value = table.numbers("time_s"), table.numbers("value")
    node, metric = table.labels("node"), table.labels("metric")
    device_names: tuple[str, ...] = ()
    device_codes = np.full(table.rows, -1, dtype=np.int32)
    if "device" in table.names:
        device = table.labels("device")
        device_names, device_codes = device.names, device.codes
    good = np.isfinite(time_s) & np.isfinite(value) & (node.codes >= 0) & (metric.codes >= 0)
    if not good.all():
        notes.append(f"counters: {int((~good).sum())} row(s) without time, node, metric or value were left out")
    key = (node.codes.astype(np.int64) * (len(device_names) + 1) + device_codes + 1) * len(metric.names) + metric.codes
    order = np.lexsort((time_s, key))
    order = order[good[order]]
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    series = []
    for start, stop in zip(starts, [*starts[1:], len(order)], strict=True):
        rows = order[start:stop]
        first = int(rows[0])
        device_code = int(device_codes[first])
        series.append(
            CounterSeries(
                node=node.names[node.codes[first]],
                device=None if device_code < 0 else device_names[device_code],
                metric=metric.names[metric.codes[first]],
                time_s=time_s[rows],
                value=value[rows],
            )
        )
    return tuple(series)


def read_events(table: Table, notes: list[str]) -> tuple[BundleEvent, ...]:
    """Return the events sorted by time; rows without a time are left out."""
    if table.rows == 0:
        return ()
    _require(table, ("time_s", "kind"))
    texts = {name: table.texts(name) if name in table.names else None for name in ("node", "kind", "detail")}
    names = ("time_s", "pid", "bytes", "duration_s")
    numbers = {name: table.numbers(name) if name in table.names else None for name in names}

    def number(name: str, row: int) -> float | None:
        column = numbers[name]
        return None if column is None or np.isnan(column[row]) else float(column[row])

    def text(name: str, row: int) -> str | None:
        column = texts[name]
        return None if column is None else column[row]

    events = []
    for row in range(table.rows):
        time_s, pid = number("time_s", row), number("pid", row)
        if time_s is None:
            notes.append(f"{table.place(row)}: no time_s; left out")
            continue
        events.append(
            BundleEvent(
                time_s=time_s,
                node=text("node", row),
                kind=text("kind", row) or "",
                pid=None if pid is None else int(pid),
                bytes=number("bytes", row),
                duration_s=number("duration_s", row),
                detail=text("detail", row),
            )
        )
    return tuple(sorted(events, key=lambda event: event.time_s))


def _require(table: Table, names: tuple[str, ...]) -> None:
    for name in names:
        if name not in table.names:
            raise InputError(f"{table.place(0).partition(' ')[0]}: no column {name}; it has {', '.join(table.names)}")
