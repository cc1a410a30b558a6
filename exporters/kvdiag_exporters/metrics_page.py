"""Write docs/metrics.md from the catalogue: `python -m kvdiag_exporters.metrics_page FILE`; --check fails if stale."""

import sys
from pathlib import Path

from kvdiag_exporters.catalog import Metric, metrics

_HEAD = """# Metrics

Generated from the catalogue by `python -m kvdiag_exporters.metrics_page docs/metrics.md`; do not edit.
Units are base units: seconds, bytes, ratio 0 to 1. What cannot be observed is absent, never zero.
"Recorded as" is the name in a [trace bundle](exporter.md#recording-a-trace-bundle).

| metric | type | labels | recorded as | what it says |
|---|---|---|---|---|
"""


def build_page() -> str:
    """Return the page as Markdown."""
    return _HEAD + "".join(_row(metric) for metric in metrics())


def _row(metric: Metric) -> str:
    labels = ", ".join(metric.labels) or "–"
    recorded = ", ".join(f"`{one.name}` ({one.unit})" for one in metric.recorded) or "–"
    return f"| `{metric.name}` | {metric.kind} | {labels} | {recorded} | {metric.help} |\n"


def main() -> int:
    check = "--check" in sys.argv[1:]
    (name,) = [argument for argument in sys.argv[1:] if argument != "--check"] or ["docs/metrics.md"]
    path = Path(name)
    page = build_page()
    if not check:
        path.write_text(page)
        return 0
    if path.exists() and path.read_text() == page:
        return 0
    sys.stderr.write(f"{path} is stale; run python -m kvdiag_exporters.metrics_page {path}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
