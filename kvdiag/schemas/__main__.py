"""Write the schema files from the document types, or with --check fail where one is stale."""

import json
import sys
from pathlib import Path

from kvdiag.report.json import build_schema, document_types


def main() -> int:
    folder = Path(__file__).parent
    wanted = {
        f"{name}.json": json.dumps(build_schema(document_type), indent=2) + "\n"
        for name, document_type in document_types().items()
    }
    present = {path.name: path.read_text() for path in folder.glob("*.json")}
    if "--check" in sys.argv[1:]:
        stale = sorted(name for name in wanted.keys() | present.keys() if wanted.get(name) != present.get(name))
        if stale:
            sys.stderr.write(f"stale schema files: {', '.join(stale)}; run python -m kvdiag.schemas\n")
        return 1 if stale else 0
    for name in present.keys() - wanted.keys():
        (folder / name).unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
