"""Per-request records: what engines send or log, decoded, joined, and kept for a while."""
