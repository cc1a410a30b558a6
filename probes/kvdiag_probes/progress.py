"""How far a probe is, and how fast it goes, as one line for a terminal."""

_CELLS = 20


def bar(done: float, of: float, what: str, bytes_per_second: float | None = None) -> str:
    """Return a bar of the share that is done, the rate at which bytes last moved, and what is under way."""
    share = min(1.0, max(0.0, done / of)) if of > 0 else 0.0
    full = int(share * _CELLS)
    rate = "" if bytes_per_second is None else f"{bytes_per_second * 8e-9:.3f} Gb/s, "
    return f"[{'#' * full}{'.' * (_CELLS - full)}] {share:4.0%}  {rate}{what}"
