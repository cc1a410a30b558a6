"""The names in the spans by which one exporter gives pieces of records to another."""

SCOPE = "kvdiag.forward"
NAME = "kvdiag.pieces"
PIECES = "kvdiag.pieces"
"""The attribute that holds them: a PieceLine in JSON."""
