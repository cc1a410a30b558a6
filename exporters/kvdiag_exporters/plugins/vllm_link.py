"""Links vLLM's transfers to requests in the worker that makes them (entry point group `vllm.general_plugins`).

A connector's public interface tells per step which requests finished (`get_transfer_results`, before vLLM 0.32
`get_finished`) and what was transferred (`get_kv_connector_stats`), not which belongs to which. Where exactly one
request finished in a step, the handles that completed in it are that request's ("derived"); others stay without a
request. Only with KVDIAG_VLLM_LINK=1; the stat logger then leaves the transfers to this one.
"""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from kvdiag.derive.request_ids import engine_key
from kvdiag.model.piece_line import PieceLine
from kvdiag_exporters.plugins.line_writer import LineWriter
from kvdiag_exporters.plugins.vllm_stats import LINK_VARIABLE, VARIABLE, TransferReader, copy_stats

_log = logging.getLogger(__name__)
_writers: dict[Path, LineWriter] = {}


def register() -> None:
    """Wrap the factory of connectors; vLLM calls this once in each of its processes."""
    path = os.environ.get(VARIABLE, "")
    if not path or os.environ.get(LINK_VARIABLE) != "1":
        return
    try:
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    except ImportError:
        _log.warning("kvdiag: this vLLM has no KVConnectorFactory; transfers are not linked to requests")
        return
    wrap_factory(KVConnectorFactory, _writers.setdefault(Path(path), LineWriter(Path(path), msgspec.json.encode)))


def wrap_factory(factory: Any, writer: LineWriter) -> None:
    """Let every connector that the factory makes tell its transfers; one that is wrapped already stays as it is."""
    create = factory.create_connector
    if getattr(create, "kvdiag", False):
        return

    def create_connector(*args: Any, **kwargs: Any) -> Any:
        connector = create(*args, **kwargs)
        try:
            config = kwargs.get("config") or (args[0] if args else None)
            _Linked(connector, TransferReader(getattr(config, "kv_transfer_config", None)), writer)
        except Exception:  # the engine goes on without being told of
            _log.warning("kvdiag: transfers of this connector are not linked to requests", exc_info=True)
        return connector

    create_connector.kvdiag = True  # type: ignore[attr-defined]
    factory.create_connector = staticmethod(create_connector)


class _Linked:
    """The wrapped methods of one connector, and which requests its last step finished."""

    def __init__(self, connector: Any, reader: TransferReader, writer: LineWriter) -> None:
        self._reader, self._writer = reader, writer
        self._finished: tuple[str, ...] = ()
        self._get_stats: Callable[..., Any] = connector.get_kv_connector_stats
        connector.get_kv_connector_stats = self.get_kv_connector_stats
        for name in ("get_transfer_results", "get_finished"):
            method = getattr(connector, name, None)
            if method is not None:
                setattr(connector, name, self._noting(method))

    def _noting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            found = method(*args, **kwargs)
            try:
                if hasattr(found, "finished_recving"):
                    sent, received = found.finished_sending, found.finished_recving
                else:
                    sent, received = found
                # Pull: received; push: sent. The other set is that of requests that moved nothing here.
                self._finished = tuple((sent if self._reader.direction == "push" else received) or ())
            except (TypeError, ValueError, AttributeError):
                self._finished = ()
            return found

        return wrapper

    def get_kv_connector_stats(self, *args: Any, **kwargs: Any) -> Any:
        stats = self._get_stats(*args, **kwargs)
        if stats:
            try:
                self._tell(copy_stats(stats))
            except Exception:  # whatever a later version gives, the engine goes on
                self._writer.lost += 1
        return stats

    def _tell(self, stats: dict[str, Any]) -> None:
        keys = (engine_key(self._finished[0]),) if len(self._finished) == 1 else ()
        self._finished = ()
        transfers = tuple(self._reader.transfers(stats, keys, time.time() if keys else None))
        if transfers:
            self._writer.put(PieceLine(transfers=transfers))
