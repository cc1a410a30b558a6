"""`python dashboards/build.py [--check]`: writes the dashboards and rule files, or says which are not up to date."""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

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


def main(arguments: list[str] | None = None) -> int:
    """Return 0 where every file is written or as it should be, 1 where `--check` found one that is not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where a file is out of date")
    parser.add_argument("--out", type=Path, default=FOLDER, help="the folder to write to (default: beside this file)")
    parser.add_argument("--grafana-url", default="", help="your Grafana's address, for dashboard_url of the alerts")
    parser.add_argument("--docs-url", default="", help="where this repository's pages are served, for runbook_url")
    given = parser.parse_args(arguments)
    stale = []
    wanted = dict(files(given.grafana_url.rstrip("/"), given.docs_url.rstrip("/")))
    for name, text in wanted.items():
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
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(FOLDER.parent))
    sys.exit(main())
