"""TTFT variance to causes: pure numerics on a Bundle (extra `analysis`)."""

from kvdiag.attribution.pipeline import diagnose

__all__ = ["diagnose"]
