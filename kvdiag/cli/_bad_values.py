"""What a flag's value that cannot be one is told as: the value, and what to give instead."""

from typing import Any

_WANTED = {
    "less_than_equal": "give a number of at most {le:g}",
    "less_than": "give a number below {lt:g}",
    "greater_than_equal": "give a number of at least {ge:g}",
    "greater_than": "give a number above {gt:g}",
    "int_parsing": "give a whole number",
    "int_from_float": "give a whole number",
    "float_parsing": "give a number",
    "finite_number": "give a finite number",
}


def describe(error: Exception) -> str:
    """Return a usage error's line; of a value that a flag's type refused, with the value and its bound."""
    line = str(getattr(error, "format_message", error.__str__)())
    found = getattr(error.__cause__, "errors", None)
    for one in found() if callable(found) else ():
        line = line.replace(one["msg"], _reason(one))
    return line


def _reason(one: dict[str, Any]) -> str:
    context = one.get("ctx") or {}
    if one["type"] == "value_error":
        return str(context.get("error", one["msg"])).rstrip(".")
    wanted = _WANTED.get(one["type"])
    value = str(one.get("input"))[:80]
    return f"{value!r}: {one['msg'] if wanted is None else wanted.format(**context)}"
