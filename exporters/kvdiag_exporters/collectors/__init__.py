"""One file per collector: its metrics in METRICS, and `create(setup)`, which returns it or None if it has no work."""
