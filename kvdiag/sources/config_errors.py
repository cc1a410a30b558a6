"""Says what is wrong with a configuration in its own words: the field, what it may be, the name nearest to it."""

import difflib
import re
from collections.abc import Sequence

import msgspec

_WHERE = re.compile(r"(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$\.?(?P<where>.*)`)?", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_TABLE = (msgspec.inspect.StructType, msgspec.inspect.DataclassType)
_STEP = re.compile(r"(?P<field>[^.\[\]]+)|\[(?P<index>\d+|\.\.\.)\]")


def explain(error: msgspec.ValidationError, root: type) -> str:
    """Return "field: what is wrong, what it may be instead" of an error met while converting to `root`."""
    match = _WHERE.fullmatch(str(error))
    assert match is not None
    what, where = match["what"], match["where"] or ""
    field = f"{where}: {'a name in it: ' if match['key'] else ''}" if where else ""
    declared = _type_at(root, where)
    expected = _plain(declared)
    if match["key"] and isinstance(expected, msgspec.inspect.DictType):
        declared = expected.key_type
    unknown = _UNKNOWN.fullmatch(what)
    if unknown and isinstance(expected, _TABLE):
        names = [one.encode_name for one in expected.fields]
        return f"{field}unknown field `{unknown['name']}`; {_nearest(unknown['name'], names)}"
    if what.startswith("Invalid enum value") and isinstance(expected, msgspec.inspect.LiteralType):
        return f"{field}{what}; give one of {', '.join(str(one) for one in expected.values)}"
    if " matching regex " in what or " of length <= " in what:
        wanted = _description(declared)
        return f"{field}give {wanted}" if wanted else f"{field}{what}"
    if isinstance(expected, msgspec.inspect.VarTupleType) and what.startswith("Expected `array`"):
        if not isinstance(_plain(expected.item_type), _TABLE):
            return f"{field}{what}; put it into brackets: [...]"
        return f"{field}write each as a table of its own, headed [[{where}]] and not [{where}]"
    return f"{field}{what}"


def _nearest(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean `{close[0]}`?" if close else f"the fields here are {', '.join(names)}"


def _type_at(root: type, where: str) -> msgspec.inspect.Type:
    """Return the declared type that a path such as "engines[0].role" leads to."""
    declared = msgspec.inspect.type_info(root)
    for step in _STEP.finditer(where):
        found, inner = _plain(declared), None
        if step["field"] and isinstance(found, _TABLE):
            inner = next((one.type for one in found.fields if one.encode_name == step["field"]), None)
        elif step["index"] and isinstance(found, msgspec.inspect.VarTupleType):
            inner = found.item_type
        elif step["index"] and isinstance(found, msgspec.inspect.DictType):
            inner = found.value_type
        if inner is None:
            return msgspec.inspect.AnyType()
        declared = inner
    return declared


def _description(one: msgspec.inspect.Type) -> str:
    """Return what the declaration says is to be given, of an optional field too."""
    if isinstance(one, msgspec.inspect.Metadata):
        return str((one.extra_json_schema or {}).get("description", "")) or _description(one.type)
    if isinstance(one, msgspec.inspect.UnionType):
        return next(filter(None, map(_description, one.types)), "")
    return ""


def _plain(one: msgspec.inspect.Type) -> msgspec.inspect.Type:
    """Return a type without its constraints, and without the None of optional ones."""
    if isinstance(one, msgspec.inspect.Metadata):
        return _plain(one.type)
    if isinstance(one, msgspec.inspect.UnionType):
        others = [part for part in one.types if not isinstance(part, msgspec.inspect.NoneType)]
        return _plain(others[0]) if len(others) == 1 else one
    return one
