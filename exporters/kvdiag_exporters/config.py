"""The exporter's configuration: a TOML file, every field optional; what is wrong is named by file and field."""

import re
import tomllib
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kvdiag.errors import InputError, UsageError
from kvdiag_exporters.collectors.base import Engine
from kvdiag_exporters.config_errors import explain
from kvdiag_exporters.records.settings import RecordsConfig, split_address

DEFAULT_LISTEN = "127.0.0.1:9846"
_LISTEN = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^\[\]:]+):(?P<port>\d{1,5})")
_Text = Annotated[str, Meta(min_length=1)]
_Url = Annotated[str, Meta(pattern=r"^https?://[^/@\s]+(/\S*)?$")]


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One [[engines]] table; paths are relative to the configuration file."""

    name: _Text
    node: _Text | None = None
    role: Literal["prefill", "decode", "both"] = "both"
    pid: Annotated[int, Meta(ge=1)] | None = None
    nixl_telemetry: _Text | None = None
    records: _Text | None = None
    metrics: tuple[_Url, ...] = ()
    metrics_interval_s: Annotated[float, Meta(ge=0, le=3600)] = 1.0
    transfer_csv: _Text | None = None
    step_records: _Text | None = None
    logs: tuple[_Text, ...] = ()


class RecorderConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The [recorder] table: the folder of the trace bundle to write, or with `rotate_s` that of one for each period,
    of which the newest `keep` stay.
    """

    path: _Text
    incident_start_s: float | None = None
    rotate_s: Annotated[float, Meta(ge=60, le=31_536_000)] | None = None
    keep: Annotated[int, Meta(ge=1, le=100_000)] = 24


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file. `root` is where the host's file system is seen (a container: "/host"); `kernel_timing` allows to
    set probes in the kernel, `queue_pair_counters` asks for those of single queue pairs.
    """

    listen: _Text = DEFAULT_LISTEN
    address_file: _Text | None = None
    interval_s: Annotated[float, Meta(ge=0.05, le=3600)] = 1.0
    node: _Text | None = None
    root: _Text = "/"
    engines: tuple[EngineConfig, ...] = ()
    probe_results: tuple[_Text, ...] = ()
    recorder: RecorderConfig | None = None
    records: RecordsConfig | None = None
    web_config: _Text | None = None
    kernel_timing: bool = False
    queue_pair_counters: bool = False


def load(path: Path) -> Config:
    """Return the configuration in a file, its paths made absolute; InputError names the file and the field."""
    try:
        raw = tomllib.loads(path.read_text())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
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
                split_address(field, address)
    except UsageError as error:
        raise InputError(f"{path}: {error}") from None
    config = _absolute(config, path.absolute().parent)
    for field, folder, what in (
        ("root", config.root, "is no folder; name the one where the host's file system is seen"),
        (
            "address_file",
            config.address_file and str(Path(config.address_file).parent),
            "is no folder; create it first",
        ),
    ):
        if folder is not None and not Path(folder).is_dir():
            raise InputError(f"{path}: {field}: {folder} {what}")
    if config.address_file is not None and Path(config.address_file).is_dir():
        raise InputError(f"{path}: address_file: {config.address_file} is a folder; name a file in it")
    if config.recorder is not None and Path(config.recorder.path).is_file():
        raise InputError(f"{path}: recorder.path: {config.recorder.path} is a file, not a folder")
    return config


def split_listen(listen: str) -> tuple[str, int]:
    """Return address and port of ADDR:PORT (IPv6 in brackets); UsageError where it is not that."""
    match = _LISTEN.fullmatch(listen)
    if not match or int(match["port"]) > 65535:
        raise UsageError(f"listen is {listen!r}; give ADDR:PORT, for example {DEFAULT_LISTEN} (port 0: any free one)")
    return match["host"].strip("[]"), int(match["port"])


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
