"""What fields of the exporter's files may hold: texts, addresses; each says in its description what to give."""

import re
from typing import Annotated

from msgspec import Meta

from kvdiag.errors import UsageError

# "$(?!\n)": Python's $ stands before a newline at the end as well, that of JSON Schema does not.
_PORT = r"(6553[0-5]|655[0-2]\d|65[0-4]\d\d|6[0-4]\d{3}|[1-5]\d{4}|[1-9]\d{0,3})"
_SERVER = rf"^https?://(\[[0-9a-fA-F:.]+\]|[^\s/@:?#\[\]]+)(:{_PORT})?"

Text = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=4095,
        pattern=r"^[^\x00-\x1f\x7f]*$(?!\n)",
        description="one line of text, of at most 4095 characters",
    ),
]
Url = Annotated[str, Meta(pattern=_SERVER + r"(/[!-~]*)?$(?!\n)", description="an address as http://HOST:PORT/PATH")]
BaseUrl = Annotated[
    str,
    Meta(
        pattern=rf"{_SERVER}(?!\S*/v1/traces/?$)(/[!\"$->@-~]*)?$(?!\n)",
        description="the address of an OTLP/HTTP receiver without /v1/traces, as http://HOST:4318",
    ),
]

_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^\[\]:\s]+):(?P<port>\d{1,5})")


def split_address(field: str, address: str, example: str) -> tuple[str, int]:
    """Return host and port of ADDR:PORT (IPv6 in brackets); UsageError names the field where it is not that."""
    match = _ADDRESS.fullmatch(address)
    if not match or int(match["port"]) > 65535:
        raise UsageError(f"{field} is {address!r}; give ADDR:PORT, for example {example} (port 0: any free one)")
    return match["host"].strip("[]"), int(match["port"])
