"""TTFT variance to causes: pure numerics, no I/O."""
