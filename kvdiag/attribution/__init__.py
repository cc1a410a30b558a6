"""TTFT variance to causes: pure numerics on a Bundle (extra `analysis`)."""

from kvdiag.attribution.pipeline import diagnose, diagnose_live

__all__ = ["diagnose", "diagnose_live"]
