"""Which checks run: by code (GID001) or by family (GID)."""

from collections.abc import Iterable, Sequence

from kvdiag.checks.base import Check
from kvdiag.errors import UsageError


def select(
    checks: Sequence[Check], selected: Iterable[str], ignored: Iterable[str], flag: str = "--select"
) -> tuple[Check, ...]:
    """Return the checks named by `selected` (all where it is empty) less those named by `ignored`.

    Each name is a code or a family in any case, or several joined by commas; UsageError where it names no check, or
    none is left. `flag` is the one that the user gave `selected` with.
    """
    wanted, unwanted = _codes(checks, selected, flag), _codes(checks, ignored, "--ignore")
    chosen = tuple(check for check in checks if (not wanted or check.code in wanted) and check.code not in unwanted)
    if not chosen:
        raise UsageError(f"{flag}/--ignore: no check is left to run; kvdiag explain --list lists them all")
    return chosen


def _codes(checks: Sequence[Check], names: Iterable[str], flag: str) -> set[str]:
    found: set[str] = set()
    for name in (part.strip().upper() for text in names for part in text.split(",") if part.strip()):
        codes = {check.code for check in checks if name in (check.code, check.code.rstrip("0123456789"))}
        if not codes:
            families = ", ".join(dict.fromkeys(check.code.rstrip("0123456789") for check in checks))
            raise UsageError(
                f"{flag} {name}: no check and no family is called so; there are the families {families} "
                "(kvdiag explain --list)"
            )
        found |= codes
    return found
