"""The exporter's document of its latest records (GET /api/records?limit=2000), as it was saved."""

from pathlib import Path

import msgspec

from kvdiag.errors import InputError, UndeterminedError
from kvdiag.model.records import RecordsDocument
from kvdiag.model.request_file import RecordsFile, RequestFile

SCHEMA = "kvdiag.records/1"


def read(path: Path) -> tuple[RequestFile, ...]:
    """Return the requests of the window; InputError names the field that is not as it should be."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=RecordsDocument)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: no document of the exporter's records: {error}") from None
    if not found.requests:
        raise UndeterminedError(f"{path}: the exporter had joined no request yet: nothing to examine")
    return (RecordsFile(path=str(path), records=found.requests),)
