"""GET /api/records: the newest records of each kind as one document, narrowed down by the query."""

from collections.abc import Callable, Sequence
from typing import TypeVar
from urllib.parse import parse_qs

from kvdiag.errors import UsageError
from kvdiag.model.record import HandleTransfer, WindowRecord
from kvdiag.model.records import RecordsDocument
from kvdiag.model.transfer import TransferRecord
from kvdiag.report.json import encode, head
from kvdiag_exporters.records.window import MOST_SHOWN, RecordWindow

DEFAULT_LIMIT = 100
_PARAMETERS = ("limit", "node", "request_id", "trace_id")
T = TypeVar("T")


def records_document(window: RecordWindow, query: str) -> str:
    """Return the document; UsageError names a parameter that is not known or not right."""
    given = parse_qs(query, keep_blank_values=True, max_num_fields=16)
    unknown = sorted(set(given) - set(_PARAMETERS))
    if unknown:
        raise UsageError(f"parameter {unknown[0]!r} is not known; there are {', '.join(_PARAMETERS)}")
    wanted = {name: values[-1] for name, values in given.items()}
    limit = wanted.pop("limit", str(DEFAULT_LIMIT))
    if not limit.isdigit() or not 1 <= int(limit[:9]) <= MOST_SHOWN:
        raise UsageError(f"limit is {limit!r}; give a whole number from 1 to {MOST_SHOWN}")

    def request(one: TransferRecord) -> bool:
        return (
            wanted.get("node", one.decode_node) in (one.prefill_node, one.decode_node)
            and wanted.get("request_id", one.request_id) == one.request_id
            and wanted.get("trace_id", one.trace_id) == one.trace_id
        )

    def transfer(one: HandleTransfer) -> bool:
        keys = {kind: text for kind, text in one.keys}  # noqa: C416  (dict() loses the literal type)
        return (
            wanted.get("node", one.node) == one.node
            and ("request_id" not in wanted or keys.get("id") == wanted["request_id"])
            and ("trace_id" not in wanted or keys.get("trace") == wanted["trace_id"])
        )

    def span(one: WindowRecord) -> bool:
        return wanted.get("node", one.node) == one.node and not {"request_id", "trace_id"} & wanted.keys()

    requests, transfers, windows = window.shown()
    fields = head("kvdiag.records/1")
    return encode(
        RecordsDocument(
            version=fields["version"],
            host=fields["host"],
            time=fields["time"],
            requests=_newest(requests, request, int(limit)),
            transfers=_newest(transfers, transfer, int(limit)),
            windows=_newest(windows, span, int(limit)),
        )
    )


def _newest(found: Sequence[T], wanted: Callable[[T], bool], limit: int) -> tuple[T, ...]:
    return tuple([one for one in found if wanted(one)][-limit:])
