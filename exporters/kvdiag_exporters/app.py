"""The exporter put together: collect, serve, record, and end in order when asked to."""

import importlib.util
import logging
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

from kvdiag.errors import InputError, KvdiagError, UndeterminedError
from kvdiag.sources.base import Context
from kvdiag.sources.unwritable import unwritable
from kvdiag_exporters import whole
from kvdiag_exporters.collectors.base import Setup, create_all
from kvdiag_exporters.config import Config, RecorderConfig, engines, split_listen
from kvdiag_exporters.derived.base import create_all as derive_all
from kvdiag_exporters.going_on import Gone, go_on
from kvdiag_exporters.memory import give_back_freed_memory
from kvdiag_exporters.precedence import short_waits
from kvdiag_exporters.recorder import Recorder, unseen
from kvdiag_exporters.reloading import Reloads, Running, check
from kvdiag_exporters.rotation import RotatingRecorder
from kvdiag_exporters.scraper import HURRY_S, Collection, Scraper
from kvdiag_exporters.server import HttpServer
from kvdiag_exporters.signals import Signals, handled
from kvdiag_exporters.stream import RecordStream
from kvdiag_exporters.web_config import load as load_web

if TYPE_CHECKING:
    from kvdiag_exporters.records.service import Records

_log = logging.getLogger(__name__)
END_WITHIN_S = 1.2
"""Time to finish recording once asked to end, so that the whole process is gone within two seconds."""


Built = tuple[Setup, Scraper]


def build(config: Config, reloads: Reloads | None = None, before: Built | None = None) -> Built:
    """Return what the configuration describes, with every collector that has work in it.

    What was counted `before` goes on, but for what is no longer configured.
    """
    node = config.node or socket.gethostname()
    setup = Setup(
        node=node,
        engines=engines(config, node),
        context=Context(root=Path(config.root)),
        kernel_timing=config.kernel_timing,
        queue_pair_counters=config.queue_pair_counters,
        probe_results=config.probe_results,
        reloads=reloads or Reloads(),
        stream=RecordStream() if before is None else before[0].stream,
    )
    gone = None if before is None else Gone.between(before[0], setup)
    setup.stream.begin_anew()
    setup = replace(setup, records=_records(config, setup, None if before is None else before[0].records, gone))
    scraper = Scraper(
        create_all(setup),
        setup.clock,
        max_age_s=config.interval_s,
        derivations=derive_all(setup),
        precedence=setup.precedence,
    )
    if before is not None and gone is not None:
        go_on(before[1].parts, scraper.parts, gone)
    return setup, scraper


def _joins(config: Config) -> bool:
    """Return whether anything is configured that brings records."""
    return config.records is not None or any(one.records or one.step_records or one.logs for one in config.engines)


def _records(config: Config, setup: Setup, before: "Records | None", gone: Gone | None) -> "Records | None":
    """Return what joins records, where anything is configured that brings some."""
    if not _joins(config):
        return None
    from kvdiag_exporters.records.service import Records
    from kvdiag_exporters.records.settings import RecordsConfig

    settings = config.records or RecordsConfig()
    records = Records(settings, setup.engines, setup.node, setup.stream, setup.clock, setup.precedence, before)
    if before is not None and gone is not None:
        records.go_on(before, gone)
    return records


def collect_once(config: Config) -> Collection:
    """Return one collection."""
    _, scraper = build(config)
    try:
        return scraper.collect()
    finally:
        scraper.close()


def run(
    config: Config,
    announce: Callable[[str], None],
    *,
    file: Path | None = None,
    listen_from: str | None = None,
    reload: Callable[[], Config] | None = None,
) -> None:
    """Serve and record until SIGTERM or SIGINT; UnavailableError where the address cannot be listened on.

    `announce` is called with a line for a person whenever metrics begin to be served. Errors of a field name the `file`
    that it is from, and those of the address `listen_from` instead, where that is given. On SIGHUP everything ends in
    order and begins again with the configuration that `reload` returns, what was counted goes on. UndeterminedError at
    the end where lines of the recording were lost.
    """
    lost = 0
    listen: tuple[str, str] | None = None

    before: Config | None = None
    built: Built | None = None
    running = Running(config=config, ports=frozenset())

    def checked() -> Config:
        assert reload is not None
        found = reload()
        check(found, running, file, listen_from)
        return found

    def serving(address: str, others: Iterable[str], served: Built) -> None:
        nonlocal running, before, built
        before, built = None, served
        served[0].stream.settle()
        if served[0].records is not None:
            served[0].records.followers.settle()
        running = Running(config=config, ports=frozenset(int(one.rpartition(":")[2]) for one in (address, *others)))

    give_back_freed_memory()
    with short_waits(), handled(None if reload is None else checked) as signals:
        while True:
            # A free port that was once chosen is kept: whoever scrapes knows no other.
            chosen = listen[1] if listen is not None and listen[0] == config.listen else config.listen
            try:
                address, lines = _serve(config, chosen, signals, announce, file, listen_from, serving, built)
            except KvdiagError as error:
                if before is None:
                    raise
                _log.error("SIGHUP: the new configuration cannot be served, going on with the one before: %s", error)
                signals.reloads.successful = False
                config, before = before, None
                continue
            lost = lines
            listen = (config.listen, address)
            if signals.new is None:
                break
            before, config, signals.new = config, signals.new, None
            _log.info("SIGHUP: going on with the configuration as it is now")
    if lost:
        raise UndeterminedError(
            f"recorder: {lost} lines could not be recorded or were removed with their files; "
            "what diagnose finds in this bundle is incomplete"
        )


def _serve(
    config: Config,
    listen: str,
    signals: Signals,
    announce: Callable[[str], None],
    file: Path | None,
    listen_from: str | None,
    serving: Callable[[str, Iterable[str], Built], None],
    before: Built | None,
) -> tuple[str, int]:
    """Serve with one configuration until it is to end; return the address and how many lines were lost so far.

    `serving` is called with the addresses once nothing more keeps it from serving; what served `before` goes on.
    """
    setup, scraper = build(config, signals.reloads, before)
    host, port = split_listen(listen)
    web = None if config.web_config is None else load_web(Path(config.web_config))
    recorder: Recorder | RotatingRecorder | None = None
    with ExitStack() as ending:
        ending.callback(scraper.close)
        signals.at_end = scraper.hurry
        with _naming(listen_from or ("listen" if file is None else f"{file}: listen")):
            server = HttpServer(
                host,
                port,
                scraper,
                setup.clock.monotonic_s,
                lambda: None if recorder is None else recorder.status(),
                web=web,
            )
        ending.callback(server.stop)
        if config.recorder is not None:
            with _naming(file):
                recorder = _recorder(config.recorder, setup, config.interval_s)
            ending.callback(recorder.close)
        if setup.records is not None:
            from kvdiag_exporters.records.api import records_document

            with _naming(file):
                setup.records.start(setup.stream)
            ending.callback(setup.records.stop)
            server.add_document("/api/records", partial(records_document, setup.records.window))
        if setup.stream.followers:
            over = Event()
            ending.callback(over.set)
            Thread(
                target=setup.stream.follow_on, args=(setup.precedence, over), name="follow-records", daemon=True
            ).start()
        if config.address_file is not None:
            # Only now: before, it may be that of another exporter, which has the port or the bundle.
            with _naming(file):
                _remove_address(Path(config.address_file))
        first = scraper.collect(fresh=True, timeout_s=HURRY_S if signals.ending else None)
        if recorder is not None:
            recorder.write(first)
        server.start()
        if config.address_file is not None:
            with _naming(file):
                _write_address(Path(config.address_file), server.address)
        where = "" if recorder is None else f"; {recorder.describe()}"
        if setup.records is not None:
            where = "".join(f"; {name} on {at}" for name, at in setup.records.addresses.items()) + where
        serving(server.address, () if setup.records is None else setup.records.addresses.values(), (setup, scraper))
        if signals.reloads.time_s is None or signals.reloads.successful:
            signals.reloads.time_s = setup.clock.wall_s()
        scheme = "http" if web is None or web.context is None else "https"
        announce(f"serving {scheme}://{server.address}/metrics{where}")
        for line in () if recorder is None else unseen(setup.engines, setup.node):
            _log.warning("%s", line)
        if recorder is not None or setup.stream.followers or setup.records is not None:
            _record_until(signals, scraper, recorder, config.interval_s)
        else:
            while not signals.wait():
                pass
        _finish(server, setup, scraper, recorder, goes_on=signals.new is not None and _joins(signals.new))
    return server.address, setup.stream.lost_lines


def _recorder(config: RecorderConfig, setup: Setup, interval_s: float) -> Recorder | RotatingRecorder:
    path, rotates = Path(config.path), config.rotate_s is not None

    def make(folder: Path, after: Recorder | None) -> Recorder:
        return Recorder(
            folder,
            setup.node,
            setup.engines,
            setup.stream,
            interval_s,
            config.incident_start_s,
            attach=not rotates,
            after=after,
        )

    if config.format == "parquet" and config.rotate_s is None:
        raise InputError('[recorder] format = "parquet": a bundle is rewritten when its period is over: give rotate_s')
    if config.format == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise InputError("[recorder] format = \"parquet\": needs pyarrow: pip install 'kvdiag[analysis]'")
    if config.rotate_s is None:
        return make(path, None)
    parquet, now_s = config.format == "parquet", setup.clock.wall_s()
    rotating = RotatingRecorder(path, make, config.rotate_s, config.keep, now_s, parquet=parquet)
    setup.stream.add_sink(rotating.write_records)
    return rotating


def _finish(
    server: HttpServer, setup: Setup, scraper: Scraper, recorder: Recorder | RotatingRecorder | None, *, goes_on: bool
) -> None:
    """Stop serving, then read and write what is left, in END_WITHIN_S at most."""
    deadline_s = time.monotonic() + END_WITHIN_S
    server.stop()
    if setup.stream.followers:
        setup.stream.drain(lambda: time.monotonic() > deadline_s)
    if setup.records is not None:
        setup.records.stop(max(0.3, deadline_s - time.monotonic()), goes_on=goes_on)
    if recorder is not None:
        recorder.write(scraper.collect(fresh=True, timeout_s=max(0.1, deadline_s - time.monotonic())))
        recorder.close()


def _record_until(
    signals: Signals, scraper: Scraper, recorder: Recorder | RotatingRecorder | None, interval_s: float
) -> None:
    """Collect at every full interval; one that took longer than the interval is not made up for."""
    next_s = time.monotonic() + interval_s
    while not signals.wait(max(0.0, next_s - time.monotonic())):
        collection = scraper.collect(fresh=True)
        if recorder is not None:
            recorder.write(collection)
        next_s = max(next_s + interval_s, time.monotonic())


@contextmanager
def _naming(source: Path | str | None) -> Iterator[None]:
    """Put where a setting is from before what is wrong with it."""
    try:
        yield
    except KvdiagError as error:
        raise error if source is None else type(error)(f"{source}: {error}") from None


def _remove_address(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"address_file: {path}: {error.strerror}") from None


def _write_address(path: Path, address: str) -> None:
    """Write the address at once: whoever waits for the file never reads half of it."""
    try:
        whole.put(path, f"{address}\n".encode())
    except OSError as error:
        raise unwritable(f"address_file: {path}", error) from None
