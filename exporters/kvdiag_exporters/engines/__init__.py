"""Engines' own metrics: fetched within limits, named and measured as one, whatever engine and version they are of."""
