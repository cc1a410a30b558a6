"""`python dashboards/build.py [--check]`: writes the dashboards and rule files, or says which are not up to date."""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_HISTOGRAM = ("_bucket", "_sum", "_count")
_NAME = re.compile(r"(?<![\w:/])kvdiag_\w+(?=[{\[ )])")
FOLDER = Path(__file__).resolve().parent


def files(grafana_url: str = "", docs_url: str = "") -> Iterator[tuple[str, str]]:
    """Yield path below the folder and text of every generated file; addresses in alerts begin with the two URLs."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder

    from dashboards import exporter, fabric, overview, pair
    from dashboards.alerting import rules

    for module in (overview, pair, fabric, exporter):
        dashboard = module.build()
        text = JSONEncoder(sort_keys=True, indent=1).encode(dashboard)
        yield f"grafana/{dashboard.uid}.json", json.dumps(json.loads(text), ensure_ascii=False, indent=1) + "\n"
    for name, groups in rules.files(grafana_url, docs_url).items():
        yield f"rules/{name}", rules.as_yaml(groups)
    yield "rules/README.md", rules.as_page()


def unknown_metrics(text: str) -> list[str]:
    """Return the names beginning with `kvdiag_` in a file that no metric of the exporter's catalogue has."""
    from kvdiag_exporters.catalog import metrics

    known = {metric.name for metric in metrics()}
    parts = {f"{metric.name}{end}" for metric in metrics() if metric.kind == "histogram" for end in _HISTOGRAM}
    return sorted(set(_NAME.findall(text)) - known - parts)


def main(arguments: list[str] | None = None) -> int:
    """Return 0 where every file is written or as it should be, 1 where one is not or asks for an unknown metric."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where a file is out of date")
    parser.add_argument("--out", type=Path, default=FOLDER, help="the folder to write to (default: beside this file)")
    parser.add_argument("--grafana-url", default="", help="your Grafana's address, for dashboard_url of the alerts")
    parser.add_argument("--docs-url", default="", help="where this repository's pages are served, for runbook_url")
    given = parser.parse_args(arguments)
    stale = []
    wrong = 0
    wanted = dict(files(given.grafana_url.rstrip("/"), given.docs_url.rstrip("/")))
    for name, text in wanted.items():
        for metric in unknown_metrics(text):
            wrong += 1
            print(f"{name} asks for {metric}, which is no metric of the exporter; see docs/metrics.md", file=sys.stderr)  # noqa: T201
        path = given.out / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not given.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    left_over = [
        f"{folder}/{path.name}"
        for folder, pattern in (("grafana", "*.json"), ("rules", "*.yml"))
        for path in sorted((given.out / folder).glob(pattern))
        if f"{folder}/{path.name}" not in wanted
    ]
    if given.check and (stale or left_over):
        print(f"not up to date: {', '.join(stale + left_over)}; run python dashboards/build.py", file=sys.stderr)  # noqa: T201
        return 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.path.insert(0, str(FOLDER.parent))
    try:
        sys.exit(main())
    except ModuleNotFoundError as error:
        sys.exit(f"{FOLDER.name}/build.py needs the Python package {error.name}: pip install '.[dashboards]' there")
