"""Links vLLM's transfers to requests in the worker that makes them (entry point group `vllm.general_plugins`).

A connector's public interface tells per step which requests finished (`get_transfer_results`, before vLLM 0.32
`get_finished`) and what was transferred (`get_kv_connector_stats`), not which belongs to which. Where exactly one
request finished in a step, the handles that completed in it are that request's ("derived"). Where several did, NIXL's
connector tells their handles in the order in which the transfers began, which is that of `reqs_to_recv` in what it was
bound to; they are taken for the requests' where their bytes are also in proportion to the requests' blocks. Others stay
without a request. Only with KVDIAG_VLLM_LINK=1; the stat logger then leaves the transfers to this one.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from kvdiag.derive.request_ids import engine_key
from kvdiag.model.piece_line import PieceLine
from kvdiag_exporters.plugins.line_writer import LineWriter
from kvdiag_exporters.plugins.vllm_stats import LINK_VARIABLE, VARIABLE, TransferReader, copy_stats

_log = logging.getLogger(__name__)
_writers: dict[Path, LineWriter] = {}
MOST_STARTED = 10_000
"""Requests that began and were never told finished (aborted ones): beyond so many, all are forgotten."""
SAME_SIZE = 0.001


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
        self._started: dict[str, int] = {}
        self._get_stats: Callable[..., Any] = connector.get_kv_connector_stats
        connector.get_kv_connector_stats = self.get_kv_connector_stats
        if hasattr(connector, "bind_connector_metadata"):
            self._bind: Callable[..., Any] = connector.bind_connector_metadata
            connector.bind_connector_metadata = self.bind_connector_metadata
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

    def bind_connector_metadata(self, metadata: Any) -> None:
        """Note the requests whose caches are going to be pulled, in order, and of how many blocks each."""
        try:
            for request_id, one in (getattr(metadata, "reqs_to_recv", None) or {}).items():
                self._started[request_id] = _blocks(one.local_block_ids)
            if len(self._started) > MOST_STARTED:
                self._started.clear()
        except (TypeError, ValueError, AttributeError):
            self._started.clear()
        self._bind(metadata)

    def _tell(self, stats: dict[str, Any]) -> None:
        finished, self._finished = self._finished, ()
        begun = [(one, blocks) for one, blocks in self._started.items() if one in finished]
        for one in finished:
            self._started.pop(one, None)
        transfers = tuple(self._reader.transfers(stats))
        owners: tuple[str, ...] = finished * len(transfers) if len(finished) == 1 else ()
        if len(begun) == len(finished) > 1:
            owners = owners_in_order(begun, [one.bytes for one in transfers])
        if owners:
            timed = self._reader.transfers(stats, end_s=time.time())
            transfers = tuple(replace(one, keys=(engine_key(key),)) for one, key in zip(timed, owners, strict=True))
        if transfers:
            self._writer.put(PieceLine(transfers=transfers))


def owners_in_order(begun: Sequence[tuple[str, int]], sizes: Sequence[float | None]) -> tuple[str, ...]:
    """Return whose each handle is: as many for each request, in this order; none where bytes per block contradict.

    `begun` has the requests in the order in which they began, each with its number of blocks.
    """
    pulled = [(request_id, blocks) for request_id, blocks in begun if blocks > 0]
    known = [size for size in sizes if size]
    if not pulled or len(known) < len(sizes) or not sizes or len(sizes) % len(pulled):
        return ()
    each = len(sizes) // len(pulled)
    per_block = [sum(known[n * each : (n + 1) * each]) / blocks for n, (_, blocks) in enumerate(pulled)]
    if max(per_block) > min(per_block) * (1 + SAME_SIZE):
        return ()
    return tuple(request_id for request_id, _ in pulled for _ in range(each))


def _blocks(groups: Any) -> int:
    """Return how many blocks: of one list (of older versions), or of one list per group of the KV cache."""
    return sum(len(one) if hasattr(one, "__len__") else 1 for one in groups)
