"""A stat logger for vLLM (entry point group `vllm.stat_logger_plugins`, vLLM 0.11 to 0.33, AsyncLLM).

Each engine step that finished a request or a KV transfer becomes a line in the file that KVDIAG_VLLM_RECORDS names,
which the exporter follows. Nothing is written where the variable is not set. In the step itself a few lists are
copied and queued; a thread of its own does the rest.
"""

import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvdiag.derive.request_ids import external_key
from kvdiag.model.piece_line import PieceLine
from kvdiag.model.record import HandleTransfer, Key, RequestPiece, Side, WindowRecord
from kvdiag.model.transfer import Grade
from kvdiag_exporters.plugins.line_writer import LineWriter

try:
    from vllm.v1.metrics.loggers import StatLoggerBase as _Base
except ImportError:  # without vLLM there is nothing to log, but the file is read, tested and documented
    _Base = object

_log = logging.getLogger(__name__)
VARIABLE = "KVDIAG_VLLM_RECORDS"
NODE_VARIABLE = "KVDIAG_NODE"
ENGINE_VARIABLE = "KVDIAG_ENGINE"
LINK_VARIABLE = "KVDIAG_VLLM_LINK"
"""1: the worker tells the transfers, each with its request where that can be known (plugins/vllm_link.py)."""
_LISTS = ("transfer_duration", "post_duration", "bytes_transferred", "num_descriptors")
_SIDES: Mapping[str, Side] = {"kv_producer": "prefill", "kv_consumer": "decode"}
_PUSHING = ("Push", "Mooncake")

_DERIVED: Mapping[str, Grade] = dict.fromkeys(("start_s", "prefill_end_s", "kv_present_s", "first_token_s"), "derived")
"""A span knows these instants; here they are the step's end less durations."""

_writers: dict[Path, LineWriter] = {}


class TransferReader:
    """Makes handles of a connector's lists; `direction` is push, pull, or None where the connector does not tell."""

    def __init__(self, transfer_config: Any) -> None:
        self.connector = str(getattr(transfer_config, "kv_connector", None) or "")
        extra = getattr(transfer_config, "kv_connector_extra_config", None) or {}
        self.direction = _direction(self.connector, extra)
        self.node = os.environ.get(NODE_VARIABLE) or None  # else the exporter knows whose file it follows

    def children(self, stats: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
        """Yield each connector's own statistics with its name: MultiConnector nests those of its children."""
        nested: list[tuple[str, Mapping[str, Any]]] = [
            (str(key), value) for key, value in stats.items() if isinstance(value, dict)
        ]
        yield from nested or [(self.connector or "connector", stats)]

    def transfers(
        self, stats: Mapping[str, Any], keys: tuple[Key, ...] = (), end_s: float | None = None
    ) -> Iterable[HandleTransfer]:
        """Yield one per handle; lists that an older version lacks leave their fields absent.

        With `end_s`, when the step saw them complete, each start is that less its duration.
        """
        for _, child in self.children(stats):
            columns = [child.get(name) or () for name in _LISTS]
            for index in range(max(len(one) for one in columns)):
                duration_s, post_s, moved, descriptors = (
                    float(one[index]) if index < len(one) else None for one in columns
                )
                start_s = None if end_s is None or duration_s is None else end_s - duration_s
                yield HandleTransfer(
                    source="vllm plugin",
                    keys=keys,
                    node=self.node,
                    direction=self.direction,
                    backend=self.connector or None,
                    start_s=start_s,
                    duration_s=duration_s,
                    post_s=post_s,
                    bytes=moved,
                    descriptors=descriptors,
                    evidence={} if start_s is None else {"start_s": "derived"},
                )


class KvdiagStatLogger(_Base):  # type: ignore[misc]
    """One per engine of the process; vLLM calls `record` after every step."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:  # noqa: ARG002  (vLLM gives it)
        path = os.environ.get(VARIABLE, "")
        transfer = getattr(vllm_config, "kv_transfer_config", None)
        self._reader = TransferReader(transfer)
        self._side = _SIDES.get(str(getattr(transfer, "kv_role", "")))
        self._linked = os.environ.get(LINK_VARIABLE) == "1"
        self._engine = os.environ.get(ENGINE_VARIABLE) or None
        self._writer = _writer(Path(path)) if path else None
        self._told = 0

    def record(
        self,
        scheduler_stats: Any = None,
        iteration_stats: Any = None,
        mm_cache_stats: Any = None,  # noqa: ARG002  (vLLM gives it by name)
        engine_idx: int = 0,
        **_later: Any,
    ) -> None:
        """Queue what a step finished: lists are copied, for vLLM's own loggers extend them afterwards."""
        if self._writer is None:
            return
        stats = scheduler_stats.kv_connector_stats if scheduler_stats is not None else None
        finished = iteration_stats.finished_requests if iteration_stats is not None else None
        if not stats and not finished:
            return
        try:
            self._writer.put((self, time.time(), engine_idx, copy_stats(stats), list(finished or ())))
        except Exception:  # whatever a later version gives, the engine goes on
            self._writer.lost += 1

    def log(self) -> None: ...

    def log_engine_initialized(self) -> None:
        """Say where records go, or that they go nowhere."""
        if self._writer is None:
            _log.info("kvdiag: %s is not set; transfers and finished requests are not recorded", VARIABLE)
        else:
            _log.info("kvdiag: recording transfers and finished requests into %s", self._writer.path)

    def record_sleep_state(self, *_args: Any, **_named: Any) -> None: ...

    def line(self, time_s: float, engine: int, stats: Mapping[str, Any], finished: Sequence[Any]) -> PieceLine:
        """Return one step as pieces; called by the writer's thread."""
        transfers = () if self._linked else tuple(self._reader.transfers(stats))
        counts: dict[str, float] = {}
        for name, child in self._reader.children(stats):
            for key, value in child.items():
                if isinstance(value, int | float) and value and key not in _LISTS:
                    counts[f"{name}.{key}"] = float(value)
        assert self._writer is not None
        unwritten = self._writer.dropped + self._writer.lost
        if unwritten > self._told:
            counts["kvdiag.dropped_steps"] = float(unwritten - self._told)
            self._told = unwritten
        window = WindowRecord(
            source="vllm plugin",
            node=self._reader.node,
            engine=self._engine,
            rank=str(engine),
            start_s=time_s,
            end_s=time_s,
            values=counts,
        )
        return PieceLine(
            requests=tuple(self._request(one, time_s) for one in finished if getattr(one, "request_id", None)),
            transfers=transfers,
            windows=(window,) if counts else (),
        )

    def _request(self, one: Any, time_s: float) -> RequestPiece:
        """Return a finished request (FinishedRequestStats); its start is the step's end less its whole time."""
        start_s = time_s - one.e2e_latency
        scheduled_s = start_s + one.queued_time
        decode, prefill = self._side == "decode", self._side == "prefill"
        cached = getattr(one, "num_cached_tokens", None)
        return RequestPiece(
            keys=(external_key(one.request_id),),
            source="vllm plugin",
            side=self._side,
            node=self._reader.node,
            start_s=start_s,
            queue_s=None if decode else one.queued_time,
            prefill_s=None if decode else one.prefill_time,
            prefill_end_s=None if decode else scheduled_s + one.prefill_time,
            kv_present_s=None if prefill else scheduled_s,
            first_step_s=None if prefill else one.prefill_time,
            first_token_s=time_s - one.decode_time,
            prompt_tokens=float(one.num_prompt_tokens),
            uncached_tokens=None if decode or cached is None else float(one.num_prompt_tokens - cached),
            output_tokens=float(one.num_generation_tokens),
            error="finished with an error" if str(one.finish_reason).lower().endswith("error") else "",
            evidence=_DERIVED,
        )


def _encode(item: tuple[KvdiagStatLogger, float, int, Mapping[str, Any], Sequence[Any]]) -> bytes:
    logger, time_s, engine, stats, finished = item
    line = logger.line(time_s, engine, stats, finished)
    return msgspec.json.encode(line) if line != PieceLine() else b""


def _writer(path: Path) -> LineWriter:
    """Return the file's writer; the engines of one process share it."""
    return _writers.setdefault(path, LineWriter(path, _encode))


def copy_stats(stats: Any) -> dict[str, Any]:
    """Return a copy that later changes do not reach; of MultiConnector's statistics, one per child connector."""
    if not stats:
        return {}
    data = stats if isinstance(stats, dict) else getattr(stats, "data", {})
    return {
        key: list(value) if isinstance(value, list) else copy_stats(value) if _nested(value) else value
        for key, value in data.items()
    }


def _nested(value: Any) -> bool:
    return isinstance(value, dict) or hasattr(value, "data")


def _direction(connector: str, extra: Mapping[str, Any]) -> str | None:
    """Return which side moves the data; MoRIIO pushes unless `read_mode` is set, a MultiConnector does not tell."""
    if "MoRIIO" in connector:
        return "pull" if str(extra.get("read_mode", "")).lower() in ("true", "1") else "push"
    if any(name in connector for name in _PUSHING):
        return "push"
    return "pull" if connector.startswith("Nixl") else None
