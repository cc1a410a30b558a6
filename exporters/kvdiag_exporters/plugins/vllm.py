"""A stat logger for vLLM (entry point group `vllm.stat_logger_plugins`, vLLM 0.11 to 0.33, AsyncLLM).

Each engine step that finished a request or a KV transfer becomes a line in the file that KVDIAG_VLLM_RECORDS names,
which the exporter follows. Nothing is written where the variable is not set. In the step itself a few lists are
copied and queued; a thread of its own does the rest.
"""

import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvdiag.derive.request_ids import external_key
from kvdiag.model.piece_line import PieceLine
from kvdiag.model.record import RequestPiece, Side, WindowRecord
from kvdiag.model.transfer import Grade
from kvdiag_exporters.plugins.line_writer import LineWriter
from kvdiag_exporters.plugins.vllm_stats import LINK_VARIABLE, LISTS, VARIABLE, TransferReader, copy_stats

try:
    from vllm.v1.metrics.loggers import StatLoggerBase as _Base
except ImportError:  # without vLLM there is nothing to log, but the file is read, tested and documented
    _Base = object

_log = logging.getLogger(__name__)
ENGINE_VARIABLE = "KVDIAG_ENGINE"
_SIDES: Mapping[str, Side] = {"kv_producer": "prefill", "kv_consumer": "decode"}
_DERIVED: Mapping[str, Grade] = dict.fromkeys(("start_s", "prefill_end_s", "kv_present_s", "first_token_s"), "derived")
"""A span knows these instants; here they are the step's end less durations."""

_writers: dict[Path, LineWriter] = {}


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
                if isinstance(value, int | float) and value and key not in LISTS:
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
