"""Frozen, typed data; imports nothing else from kvdiag."""
