"""The configuration file of `kvdiag preflight`: what is judged, what fails, and what is waived until when."""

import re
from datetime import date, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from kvdiag.errors import InputError
from kvdiag.model.waiver import Waiver
from kvdiag.sources.config_errors import explain

LIMIT_BYTES = 1 << 20
_CODE = re.compile(r"[A-Za-z]{2,4}\d{3}")


class PreflightConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every key is optional; a flag of the command line wins over its key."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fail_on: Literal["warning", "critical"] | None = None
    waiver: tuple[Waiver, ...] = ()


def read(path: Path, flag: str = "--config") -> PreflightConfig:
    """Return a TOML file's settings; InputError names `flag`, the file and the field that is wrong."""
    try:
        with path.open("rb") as file:
            content = file.read(LIMIT_BYTES + 1)
    except OSError as error:
        raise InputError(f"{flag} {path}: {error.strerror or error}") from error
    if len(content) > LIMIT_BYTES:
        raise InputError(f"{flag} {path}: longer than {LIMIT_BYTES} bytes")
    try:
        parsed: Any = msgspec.toml.decode(content)
        for position, entry in enumerate(parsed.get("waiver", ()) if isinstance(parsed.get("waiver"), list) else ()):
            _check_waiver(entry, f"{flag} {path}: waiver {position + 1}")
        return msgspec.convert(parsed, type=PreflightConfig)
    except msgspec.ValidationError as error:
        raise InputError(f"{flag} {path}: {explain(error, PreflightConfig)}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"{flag} {path}: {error}") from error


def _check_waiver(entry: Any, where: str) -> None:
    """Refuse what the types allow: InputError where the code is no code, the reason empty, or a key misspelt."""
    if not isinstance(entry, dict):
        raise InputError(f"{where}: not a table; write [[waiver]]")
    for key in ("code", "reason", "expires"):
        if key not in entry:
            raise InputError(f"{where}: it has no {key}; a waiver needs code, reason and expires = YYYY-MM-DD")
    unknown = sorted(entry.keys() - {"code", "reason", "expires", "host", "subject"})
    if unknown:
        raise InputError(f"{where}: unknown key {unknown[0]!r}; there are code, reason, expires, host and subject")
    if not isinstance(entry["code"], str) or not _CODE.fullmatch(entry["code"]):
        raise InputError(f'{where}: code {entry["code"]!r} is no check\'s code; write for example "GID003"')
    if not _is_date(entry["expires"]):
        raise InputError(f"{where}: expires = {str(entry['expires'])!r} is no date; write expires = YYYY-MM-DD")
    if not str(entry["reason"]).strip():
        raise InputError(f"{where}: the reason is empty; say why the finding is accepted")


def _is_date(value: object) -> bool:
    if isinstance(value, str):
        try:
            return bool(date.fromisoformat(value))
        except ValueError:
            return False
    return isinstance(value, date) and not isinstance(value, datetime)
