"""One file per program whose spans are understood: `read(span, names)` gives pieces, or nothing of a foreign span."""
