"""Pure functions on snapshots and records: rates, units, quantiles, joins."""
