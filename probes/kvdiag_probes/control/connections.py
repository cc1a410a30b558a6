"""The agent's connections: those that never ask anything are cut, and what is wrong with one names its client."""

import asyncio
import logging
import ssl
from collections.abc import MutableMapping
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from kvdiag_probes.control.tally import Tally

FIRST_REQUEST_S = 10.0
"""A probe asks as soon as it is connected; whoever has not by then would only keep others out."""


def protocol_class(tally: Tally) -> type[H11Protocol]:
    """Return the class of connections whose irregularities a tally notes."""
    return type("TalliedConnection", (_Connection,), {"tally": tally})


def note_handshakes(context: ssl.SSLContext, tally: Tally) -> None:
    """Have failed TLS handshakes noted; asyncio ends them without a word, and knows no address there."""

    class Noted(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                reason = (error.reason or str(error)).replace("_", " ").lower()
                tally.note(None, f"refused: TLS failed ({reason})")
                raise

    context.sslobject_class = Noted


class _Connection(H11Protocol):
    tally: ClassVar[Tally]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.logger = _Lines(self.logger, self)  # type: ignore[assignment]
        self._unasked: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._unasked = self.loop.call_later(FIRST_REQUEST_S, self._cut)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._unasked is not None:
            self._unasked.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._asked and self._unasked is not None:
            self._unasked.cancel()
            self._unasked = None

    @property
    def _asked(self) -> bool:
        cycle: object = self.cycle
        return cycle is not None

    def _cut(self) -> None:
        self._unasked = None
        if not self._asked:
            self.tally.note(self.client, f"cut: connected, and asked nothing within {FIRST_REQUEST_S:g} s")
            self.transport.abort()


class _Lines(logging.LoggerAdapter[logging.Logger]):
    """Sends the warnings of one connection to the tally."""

    def __init__(self, logger: logging.Logger, connection: _Connection) -> None:
        super().__init__(logger)
        self._connection = connection

    @property
    def level(self) -> int:
        return self.logger.level

    def warning(self, msg: object, *_: object, **__: object) -> None:
        self._connection.tally.note(self._connection.client, f"refused: {str(msg).rstrip('.').lower()}")

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, kwargs
