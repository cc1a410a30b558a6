"""Numbers for people: few digits, the unit that reads best, a real minus sign."""

import math
import re

_DURATIONS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_RATES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
NONE = "–"


def number(value: float | None, digits: int = 3) -> str:
    """Return at most so many significant digits (never fewer than the whole part), thousands apart."""
    if value is None or math.isnan(value):
        return NONE
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e15:
        return f"{value:.{digits - 1}e}".replace("-", "−")
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{places}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", "−")


def duration(value: float | None) -> str:
    """Return seconds as s, ms or µs."""
    return number(value) if value is None or not math.isfinite(value) else _in(value, *duration_unit(value))


def change(value: float | None) -> str:
    """Return a difference of seconds with its sign."""
    return duration(value) if value is None or value <= 0 else f"+{duration(value)}"


def duration_unit(largest: float) -> tuple[float, str]:
    """Return the scale and name of the unit in which durations up to `largest` seconds read best."""
    if largest == 0:
        return _DURATIONS[0]
    return next((unit for unit in _DURATIONS if abs(largest) >= 0.9995 * unit[0]), _DURATIONS[-1])


def interval(value: float, low: float | None, high: float | None) -> str:
    """Return a difference of seconds with the bounds of its interval, all in one unit and to the same digit."""
    if low is None or high is None:
        return change(value)
    largest = max(abs(value), abs(low), abs(high))
    scale, unit = duration_unit(largest)
    places = 0 if largest >= 100 * scale else 1 if largest >= 10 * scale else 2
    first, *ends = (_fixed(one / scale, places) for one in (value, low, high))
    return f"{'+' if value > 0 else ''}{first} ({ends[0]} to {ends[1]}) {unit}"


def percent(value: float | None) -> str:
    """Return a ratio in per cent, with one decimal below ten."""
    if value is None or not math.isfinite(value):
        return number(value)
    return f"{_fixed(value * 100, 1 if abs(value) < 0.0995 and value else 0)} %"


def shares(value: float, low: float, high: float) -> str:
    """Return a share and its interval in per cent."""
    return f"{_fixed(value * 100, 1)} % ({_fixed(low * 100, 1)} to {_fixed(high * 100, 1)})"


def size(value: float | None) -> str:
    """Return bytes with a binary prefix."""
    if value is None or not math.isfinite(value):
        return number(value)
    scale, unit = next(((scale, unit) for scale, unit in _SIZES if abs(value) >= scale), (1, "B"))
    return f"{number(value / scale)} {unit}"


def bits(value: float | None) -> str:
    """Return bytes per second as bits per second, as links are named."""
    return rate(None if value is None else value * 8, "b/s")


def rate(value: float | None, unit: str) -> str:
    """Return a number with a decimal prefix before its unit."""
    if value is None or not math.isfinite(value):
        return number(value)
    scale, prefix = next(((scale, prefix) for scale, prefix in _RATES if abs(value) >= scale), (1.0, ""))
    return f"{number(value / scale)} {prefix}{unit}"


def in_unit(value: float | None, unit: str) -> str:
    """Return a value of one of the base units that documents use."""
    forms = {"seconds": duration, "bytes": size, "bytes_per_second": bits, "ratio": percent}
    return forms.get(unit, number)(value)


def count(how_many: int, one: str, many: str | None = None) -> str:
    """Return `1 request`, `2,000 requests`."""
    return f"{how_many:,} {one if how_many == 1 else many or one + 's'}"


def moment(text: str) -> str:
    """Return an RFC 3339 time in UTC to the second, as people write it; anything else as it is."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(\.\d+)?(Z|\+00:00)", text)
    return f"{match[1]} {match[2]} UTC" if match else text


def _fixed(value: float, places: int) -> str:
    """Return so many decimals; what rounds to zero has no sign."""
    text = f"{value:,.{places}f}"
    return text.removeprefix("-") if not text.strip("-0.,") else text.replace("-", "−")


def _in(value: float, scale: float, unit: str) -> str:
    return f"{number(value / scale)} {unit}"
