"""One run of the demo: workers, exporter, fault, recording; everything but the recording is gone afterwards."""

import random
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kvdiag.errors import KvdiagError, UndeterminedError, UsageError
from kvdiag.model.missing import Missing
from kvdiag.sources.unwritable import unwritable
from kvdiag_probes.demo import faults, leftovers, network, nixl_import, workers
from kvdiag_probes.demo.channel import Begin, Configure, Finished, Ready, Started
from kvdiag_probes.demo.injection import Injection
from kvdiag_probes.demo.settings import DECODE_NODE, PREFILL_NODE, Settings, TransportName
from kvdiag_probes.demo.sidecar import Exporter, configuration, telling
from kvdiag_probes.demo.workers import Worker

START_WITHIN_S = 45.0
DRAIN_WITHIN_S = 45.0
SCRAPE_INTERVAL_S = 1.0
MINIMUM_REQUESTS = 200
"""A diagnosis needs 120 and names a cause with confidence from about 200 (the evaluation in docs/diagnose.md)."""

Say = Callable[[str], None]
Progress = Callable[[float, int], None]
"""Called several times a second with the share of the run that is over (0-1) and the number of rows written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is going to be done: every choice made, nothing started."""

    transport: TransportName
    fault: str
    seed: int
    rate: float
    duration_s: float
    isolated: bool
    bundle: Path
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run left: the bundle, and what was seen on the way; `fault_offset_s` is None where nothing was done."""

    plan: Plan
    requests: int
    fault_offset_s: float | None
    metrics_address: str
    metrics_sample: tuple[str, ...] = field(default=())


def plan(
    *,
    transport: str,
    fault: str,
    seed: int | None,
    rate: float,
    duration_s: float,
    output: Path,
) -> Plan:
    """Settle transport, fault and seed; UsageError for a wrong value, UndeterminedError for one impossible here."""
    if fault not in (*faults.CAUSES, "random"):
        raise UsageError(f"--fault {fault}: choose one of {', '.join(faults.CAUSES)} or random")
    notes = []
    missing_nixl = nixl_import.find() if transport != "tcp" else None
    if transport == "nixl" and isinstance(missing_nixl, Missing):
        raise UndeterminedError(f"--transport nixl: {missing_nixl.missing}")
    chosen: TransportName = "tcp" if transport == "tcp" or isinstance(missing_nixl, Missing) else "nixl"
    if isinstance(missing_nixl, Missing):
        notes.append(f"{missing_nixl.missing}; using the TCP probe transport instead")
    link = network.availability()
    if isinstance(link, Missing):
        notes.append(f"both processes share the loopback interface: {link.missing}")
    seed = random.SystemRandom().randrange(1 << 31) if seed is None else seed
    if fault == "random":
        fault = faults.choose(chosen, link, random.SystemRandom())
    impossible = faults.unavailable(fault, chosen, link)
    if impossible is not None:
        raise UndeterminedError(f"--fault {fault} is not possible here: {impossible.missing}")
    if rate * duration_s < MINIMUM_REQUESTS:
        raise UsageError(
            f"--rate {rate:g} for --duration {duration_s:g} is {rate * duration_s:.0f} requests; a diagnosis needs "
            f"{MINIMUM_REQUESTS}: give a --duration of {MINIMUM_REQUESTS / rate:.0f} or more"
        )
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(f"--output {output}", error, "name a folder that can be made") from error
    bundle = output / time.strftime("bundle-%Y%m%d-%H%M%S")
    if bundle.exists():
        raise UsageError(f"--output {output}: {bundle} exists already; try again")
    return Plan(
        transport=chosen,
        fault=fault,
        seed=seed,
        rate=rate,
        duration_s=duration_s,
        isolated=link is None,
        bundle=bundle.absolute(),
        notes=tuple(notes),
    )


@contextmanager
def running(what: Plan, say: Say, progress: Progress, *, keep_serving: bool = False) -> Iterator[Outcome]:
    """Do the plan, yield when every request was served, and leave nothing but the bundle.

    The exporter has ended by then, and the bundle is complete, unless `keep_serving`.
    """
    leftovers.sweep()
    folder = leftovers.make_folder()
    with _terminable(), _removed(folder, keep_logs=what.bundle.with_name(f"{what.bundle.name}.logs")):
        settings = _settings(what, folder)
        settings_file = folder / "settings.json"
        settings.write(settings_file)
        with workers.started(settings_file, folder, isolated=what.isolated) as (prefill, decode):
            link = _connect(prefill, decode, isolated=what.isolated)
            say(
                f"prefill (pid {prefill.pid}) and decode (pid {decode.pid}) are up: {_describe(what)} over "
                f"{link.prefill_device}/{link.decode_device}"
            )
            exporter = _exporter(what, settings, folder, prefill, decode)
            try:
                exporter.start()
                say(f"metrics on http://{exporter.address}/metrics, recording to {what.bundle}")
                outcome = _observe(what, exporter, prefill, decode, Path(settings.records), progress)
                if not keep_serving:
                    exporter.stop()
                yield outcome
            finally:
                exporter.stop()


def _observe(
    what: Plan, exporter: Exporter, prefill: Worker, decode: Worker, records: Path, progress: Progress
) -> Outcome:
    begin_s = time.monotonic() + 0.5
    prefill.send(Begin(round(begin_s * 1e9)))
    fault_offset_s = what.duration_s / 2 if what.fault != "none" else None
    sample_at_s, sample = begin_s + what.duration_s * 0.9, tuple[str, ...]()
    pending, finished = {prefill: 0, decode: 0}, dict[Worker, int]()
    injection = Injection(what.fault, begin_s + what.duration_s / 2, prefill, decode)
    try:
        while len(finished) < len(pending):
            time.sleep(0.1)
            now_s = time.monotonic()
            exporter.check()
            for one in pending:
                for message in one.poll():
                    if isinstance(message, Finished):
                        finished[one] = message.requests
            injection.step(now_s)
            if not sample and now_s >= sample_at_s:
                sample = exporter.sample()
            if now_s > begin_s + what.duration_s + DRAIN_WITHIN_S:
                raise UndeterminedError(f"the requests did not end within {DRAIN_WITHIN_S:g} s of the last arrival")
            progress(min(1.0, max(0.0, (now_s - begin_s) / what.duration_s)), _rows(records))
    finally:
        injection.end()
    time.sleep(2 * SCRAPE_INTERVAL_S)  # the exporter sees the end of the counters and of the rows
    return Outcome(
        plan=what,
        requests=finished[decode],
        fault_offset_s=fault_offset_s,
        metrics_address=exporter.address,
        metrics_sample=telling(sample or exporter.sample()),
    )


def _rows(records: Path) -> int:
    try:
        return records.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def _connect(prefill: Worker, decode: Worker, *, isolated: bool) -> network.Link:
    for one in (prefill, decode):
        one.expect(Started, START_WITHIN_S)
    link = network.connect(prefill.pid, decode.pid) if isolated else network.LOOPBACK
    prefill.send(Configure(link.prefill_device, link.prefill_address))
    decode.send(Configure(link.decode_device, link.decode_address))
    for one in (prefill, decode):
        one.expect(Ready, START_WITHIN_S)
    return link


def _settings(what: Plan, folder: Path) -> Settings:
    return Settings(
        transport=what.transport,
        seed=what.seed,
        rate=what.rate,
        duration_s=what.duration_s,
        surge=faults.SURGE if what.fault == "overload" else 1.0,
        telemetry=str(folder / "nixl-telemetry"),
        telemetry_port=_free_port(),
        records=str(folder / "requests.jsonl"),
    )


def _exporter(what: Plan, settings: Settings, folder: Path, prefill: Worker, decode: Worker) -> Exporter:
    engines: dict[str, dict[str, object]] = {
        PREFILL_NODE: {"name": "demo-prefill", "role": "prefill", "pid": prefill.pid},
        DECODE_NODE: {"name": "demo-decode", "role": "decode", "pid": decode.pid, "records": settings.records},
    }
    if what.transport == "nixl":
        for node, fields in engines.items():
            fields["nixl_telemetry"] = str(Path(settings.telemetry) / node)
    config, address_file = folder / "exporter.toml", folder / "exporter.address"
    config.write_text(configuration(engines, address_file, what.bundle, SCRAPE_INTERVAL_S))
    return Exporter(config, address_file, folder / "exporter.log")


def _describe(what: Plan) -> str:
    return "two NIXL agents (UCX, TCP)" if what.transport == "nixl" else "the TCP probe transport"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind as Ctrl-C does, so that what was started is also ended; the first one counts."""

    def unwind(number: int, _frame: object) -> None:
        for again in before:
            signal.signal(again, signal.SIG_IGN)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        signal.signal(number, unwind)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _removed(folder: Path, keep_logs: Path) -> Iterator[None]:
    """Remove the folder; where the run failed, keep the processes' logs beside the place of the bundle."""
    try:
        yield
    except KvdiagError as error:
        logs = [log for log in folder.glob("*.log") if log.stat().st_size]
        if not logs:
            raise
        keep_logs.mkdir(parents=True, exist_ok=True)
        for log in logs:
            shutil.copy(log, keep_logs)
        raise type(error)(f"{error} (logs: {keep_logs})") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
