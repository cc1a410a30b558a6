"""Numbers as people read them in a narrow column; "-" where nothing was counted, "?" where nobody counts."""

NONE = "-"
UNSEEN = "?"


def seconds(value: float | None) -> str:
    """Return 412 µs, 9.1 ms, 2.40 s or 95 s."""
    if value is None:
        return UNSEEN
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if value < limit:
            return f"{_three(value * factor)} {unit}"
    return f"{_three(value)} s"


def size(value: float | None) -> str:
    """Return bytes with decimal prefixes, as links are rated."""
    return UNSEEN if value is None else f"{scaled(value)}B"


def rate(value: float | None) -> str:
    """Return bytes per second with decimal prefixes."""
    return UNSEEN if value is None else f"{scaled(value)}B/s"


def bit_rate(value: float | None) -> str:
    """Return bytes per second as a link's rate, in bits per second."""
    return f"{scaled(value * 8)}b/s" if value else UNSEEN


def per_s(value: float | None) -> str:
    """Return events per second; a rate that is rounded to nothing still shows that it is not zero."""
    if value is None:
        return UNSEEN
    return "0" if value == 0 else "<0.01" if value < 0.005 else scaled(value).strip()


def share(value: float | None) -> str:
    """Return a ratio in per cent."""
    return UNSEEN if value is None else f"{value * 100:.0f} %" if abs(value) >= 0.095 else f"{value * 100:.1f} %"


def count(value: float | None) -> str:
    """Return a whole number."""
    return UNSEEN if value is None else f"{value:,.0f}".replace(",", " ")


def age(value: float | None) -> str:
    """Return how long ago, in seconds, minutes or hours."""
    if value is None:
        return "never"
    if value < 100:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 6000 else f"{value / 3600:.0f} h"


def scaled(value: float) -> str:
    """Return three digits and a decimal prefix: `9.31 G`."""
    for limit, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit * 0.9995:
            return f"{_three(value / limit)} {prefix}"
    return f"{_three(value)} "


def _three(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
