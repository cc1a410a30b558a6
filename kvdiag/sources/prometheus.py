"""Samples of a period from a Prometheus server, as it scraped them (HTTP API, /api/v1/query with range selectors)."""

import http.client
import json
import math
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvdiag.errors import InputError, UnavailableError, UsageError

CHUNK_S = 3600.0
"""One answer holds at most that much: at 15 s and a thousand series, about a quarter of a million samples."""
MOST_S = 24 * 3600.0
TIMEOUT_S = 60.0
FIRST_S = 10.0
"""Longest wait for the answer to a query that costs a server nothing."""
MOST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """One series: its name and labels, wall-clock seconds ascending (each once), and the values."""

    name: str
    labels: dict[str, str]
    time_s: NDArray[np.float64]
    value: NDArray[np.float64]


def read_prometheus(
    url: str, names: Sequence[str], start_s: float, end_s: float, timeout_s: float = TIMEOUT_S
) -> tuple[Samples, ...]:
    """Return the samples between `start_s` and `end_s` (seconds of the epoch) of all series of these names.

    UsageError for a period or URL that cannot be, UnavailableError where the server does not answer or refuses,
    InputError where its answer is not that of a Prometheus.
    """
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise UsageError(f"--prometheus {url}: not an http:// or https:// address")
    if not (math.isfinite(start_s) and math.isfinite(end_s) and start_s < end_s):
        raise UsageError(f"--start {start_s:.3f} is not before --end {end_s:.3f}")
    if end_s - start_s > MOST_S:
        raise UsageError(
            f"--start to --end is {(end_s - start_s) / 3600:.1f} hours; at most {MOST_S / 3600:g} are read at once"
        )
    # Long queries may take long; a server that does not answer at all is told apart from them first.
    list(_matrix(url, "vector(1)[1s:1s]", end_s, min(timeout_s, FIRST_S)))
    found: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    selector = '{__name__=~"' + "|".join(names) + '"}'
    for stop in _ends(start_s, end_s):
        width = min(CHUNK_S, end_s - start_s)
        query = f"{selector}[{max(1, math.ceil(width))}s]"
        for labels, values in _matrix(url, query, stop, timeout_s):
            found.setdefault(tuple(sorted(labels.items())), []).extend(values)
    return tuple(
        _series(dict(key), points, start_s, end_s)
        for key, points in sorted(found.items())
        if _within(points, start_s, end_s)
    )


def _ends(start_s: float, end_s: float) -> Iterator[float]:
    stop = end_s
    while stop > start_s:
        yield stop
        stop -= CHUNK_S


def _within(points: list[tuple[float, float]], start_s: float, end_s: float) -> bool:
    return any(start_s <= time_s <= end_s for time_s, _ in points)


def _series(labels: dict[str, str], points: list[tuple[float, float]], start_s: float, end_s: float) -> Samples:
    kept = sorted({time_s: value for time_s, value in points if start_s <= time_s <= end_s}.items())
    time_s, value = (np.array(column, dtype=np.float64) for column in zip(*kept, strict=True))
    finite = np.isfinite(value)
    return Samples(labels.pop("__name__", ""), labels, time_s[finite], value[finite])


def _matrix(
    url: str, query: str, at_s: float, timeout_s: float
) -> Iterator[tuple[dict[str, str], list[tuple[float, float]]]]:
    data = urllib.parse.urlencode({"query": query, "time": f"{at_s:.3f}"}).encode()
    address = f"{url.rstrip('/')}/api/v1/query"
    try:
        request = urllib.request.Request(address, data)  # noqa: S310  the scheme was looked at above
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310
            body = answer.read(MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        raise UnavailableError(f"{address}: HTTP {error.code}: {_reason(error)}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise UnavailableError(f"{address}: no answer ({reason}); is it the address of a Prometheus server?") from None
    if len(body) > MOST_BYTES:
        raise UnavailableError(f"{address}: more than {MOST_BYTES >> 20} MiB for one hour; give a shorter period")
    try:
        document: Any = json.loads(body)
        results = document["data"]["result"]
        for one in results:
            yield dict(one["metric"]), [(float(at), float(value)) for at, value in one["values"]]
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{address}: the answer is not that of a Prometheus server: {body[:60]!r}") from None


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        document: Any = json.loads(error.read(1 << 16))
        return str(document["error"]).splitlines()[0]
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return str(error.reason)
    finally:
        error.close()
