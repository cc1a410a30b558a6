"""Faults of every kind against a running exporter, and an oracle that knows what each series must be."""
