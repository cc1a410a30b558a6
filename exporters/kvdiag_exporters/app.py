"""The exporter put together: collect, serve, record, and end in order when asked to."""

import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from kvdiag.errors import InputError, UndeterminedError
from kvdiag.sources.base import Context
from kvdiag_exporters.collectors.base import Setup, create_all
from kvdiag_exporters.config import Config, engines, split_listen
from kvdiag_exporters.recorder import Recorder
from kvdiag_exporters.scraper import Collection, Scraper
from kvdiag_exporters.server import HttpServer

_log = logging.getLogger(__name__)
END_WITHIN_S = 1.2
"""Time to finish recording once asked to end, so that the whole process is gone within two seconds."""


def build(config: Config) -> tuple[Setup, Scraper]:
    """Return what the configuration describes, with every collector that has work in it."""
    node = config.node or socket.gethostname()
    setup = Setup(node=node, engines=engines(config, node), context=Context(root=Path(config.root)))
    return setup, Scraper(create_all(setup), setup.clock, max_age_s=config.interval_s)


def collect_once(config: Config) -> Collection:
    """Return one collection."""
    _, scraper = build(config)
    return scraper.collect()


def run(config: Config, announce: Callable[[str], None]) -> None:
    """Serve and record until SIGTERM or SIGINT; UnavailableError where the address cannot be listened on.

    `announce` is called once with a line for a person, when metrics are served. UndeterminedError at the end where
    lines of the recording were lost.
    """
    setup, scraper = build(config)
    host, port = split_listen(config.listen)
    recorder: Recorder | None = None
    server = HttpServer(
        host, port, scraper, setup.clock.monotonic_s, lambda: None if recorder is None else recorder.status()
    )
    if config.recorder is not None:
        recorder = Recorder(
            Path(config.recorder.path), setup.node, setup.engines, setup.stream, config.interval_s,
            config.recorder.incident_start_s,
        )  # fmt: skip
    if config.address_file is not None:  # only now: it may be that of the exporter that has the port or the bundle
        Path(config.address_file).unlink(missing_ok=True)
    with _stop_on_signals() as stop:
        first = scraper.collect(fresh=True)
        if recorder is not None:
            recorder.write(first)
        server.start()
        if config.address_file is not None:
            _write_address(Path(config.address_file), server.address)
        where = "" if recorder is None else f"; {recorder.describe()}"
        announce(f"serving http://{server.address}/metrics{where}")
        if recorder is not None or setup.stream.followers:
            _record_until(stop, scraper, recorder, config.interval_s)
        else:
            stop.wait()
        _finish(server, setup, scraper, recorder)
    if setup.stream.lost_lines:
        raise UndeterminedError(
            f"recorder: {setup.stream.lost_lines} lines could not be recorded or were removed with their files; "
            "what diagnose finds in this bundle is incomplete"
        )


def _finish(server: HttpServer, setup: Setup, scraper: Scraper, recorder: Recorder | None) -> None:
    """Stop serving, then read and write what is left, in END_WITHIN_S at most."""
    deadline_s = time.monotonic() + END_WITHIN_S
    server.stop()
    if setup.stream.followers:
        setup.stream.drain(lambda: time.monotonic() > deadline_s)
    if recorder is not None:
        recorder.write(scraper.collect(fresh=True, timeout_s=max(0.1, deadline_s - time.monotonic())))
        recorder.close()


def _record_until(stop: threading.Event, scraper: Scraper, recorder: Recorder | None, interval_s: float) -> None:
    """Collect at every full interval; one that took longer than the interval is not made up for."""
    next_s = time.monotonic() + interval_s
    while not stop.wait(max(0.0, next_s - time.monotonic())):
        collection = scraper.collect(fresh=True)
        if recorder is not None:
            recorder.write(collection)
        next_s = max(next_s + interval_s, time.monotonic())


@contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    stop = threading.Event()

    def ask(number: int, _frame: FrameType | None) -> None:
        _log.info("ending: %s", signal.Signals(number).name)
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _write_address(path: Path, address: str) -> None:
    """Write the address at once: whoever waits for the file never reads half of it."""
    beside = path.with_name(path.name + ".new")
    try:
        beside.write_text(address + "\n")
        beside.replace(path)
    except OSError as error:
        raise InputError(f"address_file: {path}: {error.strerror}") from None
