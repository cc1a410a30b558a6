"""Figures in words for people, from the base units that documents keep."""

_MIB = 1 << 20


def seconds(value: float) -> str:
    """Return a duration in the unit that a person would choose."""
    if value < 1e-3:
        return f"{value * 1e6:.1f} µs"
    return f"{value * 1e3:.3f} ms" if value < 1 else f"{value:.3f} s"


def amount(value: float, unit: str) -> str:
    """Return a figure with its unit; a rate in bytes per second both as links and as memory are rated."""
    if unit == "seconds":
        return seconds(value)
    if unit == "bytes_per_second":
        return f"{value * 8 / 1e9:.4g} Gb/s ({value / _MIB:.4g} MiB/s)"
    return f"{value:.4g}" if unit in ("count", "ratio") else f"{value:.4g} {unit.replace('_', ' ')}"
