"""A configuration written out, with every default in it; and its JSON Schema, for editors.

`python -m kvdiag_exporters.config_text FILE` writes the schema; --check fails where FILE is stale.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from kvdiag_exporters.config import Config


def as_json(config: Config) -> str:
    """Return the configuration as JSON; what is not set is null."""
    return json.dumps(msgspec.to_builtins(config), indent=2) + "\n"


def as_toml(config: Config) -> str:
    """Return the configuration as TOML that `load` reads back; what is not set is left out."""
    return "\n".join(_table(msgspec.to_builtins(config), "")).lstrip("\n") + "\n"


def _table(values: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the plain fields of a table, then the tables in it: TOML knows no way back out of one."""
    for name, value in values.items():
        if value is not None and not _is_table(value):
            yield f"{name} = {_value(value)}"
    for name, value in values.items():
        inner = f"{path}.{name}" if path else name
        if isinstance(value, Mapping):
            yield f"\n[{inner}]"
            yield from _table(value, inner)
        elif _is_table(value):
            for one in value:
                yield f"\n[[{inner}]]"
                yield from _table(one, inner)


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, list | tuple) and any(isinstance(one, Mapping) for one in value)
    )


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(one) for one in value) + "]"
    # JSON's strings are TOML's basic strings, but for DEL, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if isinstance(value, str) else repr(value)


def schema() -> str:
    """Return the JSON Schema of a configuration file."""
    found = msgspec.json.schema(Config)
    found["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(found, indent=2, sort_keys=True) + "\n"


def main() -> int:
    check = "--check" in sys.argv[1:]
    (name,) = [argument for argument in sys.argv[1:] if argument != "--check"]
    path = Path(name)
    if not check:
        path.write_text(schema())
        return 0
    if path.exists() and path.read_text() == schema():
        return 0
    sys.stderr.write(f"{path} is stale; run python -m kvdiag_exporters.config_text {path}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
