"""The exporter's configuration: a TOML file, every field optional; what is wrong is named by file and field."""

import tomllib
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kvdiag.errors import InputError, UsageError
from kvdiag.sources.config_errors import explain
from kvdiag_exporters.collectors.base import Engine
from kvdiag_exporters.config_types import Text, Url, split_address
from kvdiag_exporters.records.settings import RecordsConfig, otlp_address

DEFAULT_LISTEN = "127.0.0.1:9846"
_ADDRESS_BYTES = 1024


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One [[engines]] table; paths are relative to the configuration file."""

    name: Text
    node: Text | None = None
    role: Literal["prefill", "decode", "both"] = "both"
    pid: Annotated[int, Meta(ge=1)] | None = None
    nixl_telemetry: Text | None = None
    records: Text | None = None
    metrics: tuple[Url, ...] = ()
    metrics_interval_s: Annotated[float, Meta(ge=0, le=3600)] = 1.0
    transfer_csv: Text | None = None
    step_records: Text | None = None
    logs: tuple[Text, ...] = ()


class RecorderConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The [recorder] table: the folder of the trace bundle to write, or with `rotate_s` that of one for each period,
    of which the newest `keep` stay; those that are over are kept as `format`.
    """

    path: Text
    incident_start_s: Annotated[float, Meta(ge=0, le=1e11)] | None = None
    rotate_s: Annotated[float, Meta(ge=60, le=31_536_000)] | None = None
    keep: Annotated[int, Meta(ge=1, le=100_000)] = 24
    format: Literal["jsonl", "parquet"] = "jsonl"


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file. `root` is where the host's file system is seen (a container: "/host"); `kernel_timing` allows to
    set probes in the kernel, `queue_pair_counters` asks for those of single queue pairs.
    """

    listen: Text = DEFAULT_LISTEN
    address_file: Text | None = None
    interval_s: Annotated[float, Meta(ge=0.05, le=3600)] = 1.0
    node: Text | None = None
    root: Text = "/"
    engines: tuple[EngineConfig, ...] = ()
    probe_results: tuple[Text, ...] = ()
    recorder: RecorderConfig | None = None
    records: RecordsConfig | None = None
    web_config: Text | None = None
    kernel_timing: bool = False
    queue_pair_counters: bool = False


def load(path: Path) -> Config:
    """Return the configuration in a file, its paths made absolute; InputError names the file and the field."""
    try:
        raw = tomllib.loads(path.read_text())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not TOML: {error}") from None
    try:
        config = msgspec.convert(raw, Config)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {explain(error, Config)}") from None
    names = [engine.name for engine in config.engines]
    for name in names:
        if names.count(name) > 1:
            raise InputError(
                f"{path}: engines: the name {name!r} is given {names.count(name)} times; give each its own"
            )
    try:
        split_listen(config.listen)
        for field in ("otlp_http", "otlp_grpc"):
            address = getattr(config.records, field, None)
            if address is not None:
                otlp_address(field, address)
    except UsageError as error:
        raise InputError(f"{path}: {error}") from None
    config = _absolute(config, path.absolute().parent)
    try:
        _check_places(config)
    except (OSError, InputError) as error:
        why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise InputError(f"{path}: {why}") from None
    return config


def _check_places(config: Config) -> None:
    """Raise InputError where a folder is not there or a file is in the way of what would be written; or OSError."""
    if not Path(config.root).is_dir():
        raise InputError(f"root: {config.root} is no folder; name the one where the host's file system is seen")
    if config.recorder is not None and Path(config.recorder.path).is_file():
        raise InputError(f"recorder.path: {config.recorder.path} is a file, not a folder")
    if config.address_file is None:
        return
    address = Path(config.address_file)
    if not address.parent.is_dir():
        raise InputError(f"address_file: {address.parent} is no folder; create it first")
    if address.is_dir():
        raise InputError(f"address_file: {address} is a folder; name a file in it")
    if address.exists() and not _is_address(address):
        raise InputError(f"address_file: {address} holds something else than an address; name a file of its own")


def _is_address(path: Path) -> bool:
    """Return whether a file is empty or an earlier exporter's, which may be replaced."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        found = file.read(_ADDRESS_BYTES).decode(errors="replace").strip()
    try:
        return not found or bool(split_listen(found))
    except UsageError:
        return False


def split_listen(listen: str) -> tuple[str, int]:
    """Return address and port of ADDR:PORT (IPv6 in brackets); UsageError where it is not that."""
    return split_address("listen", listen, DEFAULT_LISTEN)


def engines(config: Config, node: str) -> tuple[Engine, ...]:
    """Return the engines, those without a node of their own on `node`."""
    return tuple(
        Engine(
            name=one.name,
            node=one.node or node,
            role=one.role,
            pid=one.pid,
            nixl_telemetry=None if one.nixl_telemetry is None else Path(one.nixl_telemetry),
            records=None if one.records is None else Path(one.records),
            metrics=one.metrics,
            metrics_interval_s=one.metrics_interval_s,
            transfer_csv=None if one.transfer_csv is None else Path(one.transfer_csv),
            step_records=None if one.step_records is None else Path(one.step_records),
            logs=tuple(Path(log) for log in one.logs),
        )
        for one in config.engines
    )


def _absolute(config: Config, base: Path) -> Config:
    def place(path: str | None) -> str | None:
        return None if path is None else str(base / path)

    return msgspec.structs.replace(
        config,
        root=str(base / config.root),
        address_file=place(config.address_file),
        web_config=place(config.web_config),
        probe_results=tuple(str(base / one) for one in config.probe_results),
        engines=tuple(
            msgspec.structs.replace(
                one,
                nixl_telemetry=place(one.nixl_telemetry),
                records=place(one.records),
                transfer_csv=place(one.transfer_csv),
                step_records=place(one.step_records),
                logs=tuple(str(base / log) for log in one.logs),
            )
            for one in config.engines
        ),
        records=config.records and msgspec.structs.replace(config.records, web_config=place(config.records.web_config)),
        recorder=config.recorder and msgspec.structs.replace(config.recorder, path=str(base / config.recorder.path)),
    )
