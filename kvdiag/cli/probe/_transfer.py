"""What `kvdiag probe bandwidth` and `latency` share: run, print, judge."""

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from kvdiag.cli._output import require

if TYPE_CHECKING:
    from pathlib import Path

    from kvdiag.errors import KvdiagError
    from kvdiag.model.probe import ProbeDocument, Threshold
    from kvdiag.model.probe_judgement import Metric
    from kvdiag_probes.distribution import Samples
    from kvdiag_probes.session import ProbeOptions, ProbeResult


def run_transfer(kind: Literal["bandwidth", "latency"], **flags: Any) -> int:
    """Run one probe with the flags of its command, print it, and return the exit code."""
    for module in ("numpy", "httpx"):
        require(module, "probes", f"kvdiag probe {kind}")
    from kvdiag.cli.probe import _finish
    from kvdiag.errors import KvdiagError
    from kvdiag.model.exit_code import ExitCode
    from kvdiag.report.probe_text import render
    from kvdiag_probes.budget import Budget
    from kvdiag_probes.compare import within
    from kvdiag_probes.session import run_probe

    options = _options(kind, flags)
    allowed = Budget(_finish.parse_rate(flags["budget"], "--budget") if flags["budget"] else None)
    _finish.check(flags)
    runs: list[ProbeResult] = []
    kept: list[ProbeResult] = []
    rounds = _rounds(flags)
    try:
        for number in range(rounds):
            one = options if rounds == 1 else within(options, f"round {number + 1} of {rounds} ")
            with allowed.in_force():
                runs.append(run_probe(replace(one, partial=kept.append)))
    except KvdiagError as error:
        if runs or kept:
            # Whole rounds tell more than the sizes of one that was broken off.
            document = _document((runs or kept)[-1], options)
            metrics = _metrics(kind, runs) if runs else ()
            document = replace(document, rounds=max(1, len(runs)), rounds_asked=rounds, metrics=metrics)
            _keep(document, (runs or kept)[-1], flags, str(error))
        raise
    result = next((run for run in reversed(runs) if run.proof.status == "contradicted"), runs[-1])
    metrics = _metrics(kind, runs)
    rates = [one for one in metrics if one.unit == "bytes_per_second"]
    document = replace(
        _document(result, options),
        thresholds=_thresholds(runs, flags["max_p99_us"]),
        rounds=len(runs),
        rounds_asked=rounds,
        metrics=metrics,
        judgements=_finish.judge_rates(flags, result.ends, rates, 2 if options.settings.bidirectional else 1),
    )
    code = _finish.finish(
        document,
        render,
        flags,
        metrics,
        warning=document.proof.status == "contradicted",
        failure=_write_samples(flags["samples"], result.samples),
    )
    return code if all(bound.met for bound in document.thresholds) else int(ExitCode.CRITICAL)


def _document(result: "ProbeResult", options: "ProbeOptions") -> "ProbeDocument":
    from kvdiag.model.probe import ProbeDocument
    from kvdiag.report.json import head

    return ProbeDocument(
        **head("kvdiag.probe/1"),  # type: ignore[arg-type]
        settings=options.settings,
        ends=result.ends,
        durations=result.durations,
        results=result.results,
        proof=result.proof,
        ordering=result.ordering,
        port_errors=result.port_errors,
    )


def _keep(document: "ProbeDocument", result: "ProbeResult", flags: dict[str, Any], failure: str) -> None:
    """Print and keep what was measured before a run failed; it is judged by nothing, and no baseline for others."""
    from kvdiag.cli.probe import _finish
    from kvdiag.report.probe_text import render

    document = replace(document, failure=failure)
    lost = _write_samples(flags["samples"], result.samples)
    if lost is not None:
        document = replace(document, failure=f"{failure}; and {lost}")
    _finish.finish(document, render, flags | {"baseline": None}, ())


def _metrics(kind: str, runs: "list[ProbeResult]") -> "tuple[Metric, ...]":
    from kvdiag.derive.intervals import metric

    found = []
    for index, one in enumerate(runs[0].results):
        rows = [run.results[index] for run in runs]
        name = f"{kind}.{one.size_bytes}"
        rates = [row.bytes_per_second for row in rows]
        found.append(metric(f"{name}.bandwidth", "bytes_per_second", "higher", rates))
        found.append(metric(f"{name}.latency_p50", "seconds", "lower", [row.latency_s.p50 for row in rows]))
    return tuple(found)


def _options(kind: Literal["bandwidth", "latency"], flags: dict[str, Any]) -> "ProbeOptions":
    from kvdiag.cli.probe import _finish
    from kvdiag.errors import UsageError
    from kvdiag.model.probe import ProbeSettings
    from kvdiag_probes.control.address import parse_address
    from kvdiag_probes.control.credential import load_credential
    from kvdiag_probes.session import ProbeOptions
    from kvdiag_probes.sizes import parse_sizes

    _finish.refuse_port(flags)
    if flags["iterations"] is not None and flags["duration"] is not None:
        raise UsageError("--iterations and --duration exclude each other: give one")
    iterations = flags["iterations"]
    if iterations is None and flags["duration"] is None:
        iterations = 1000
    return ProbeOptions(
        peer=parse_address(flags["peer"], "PEER"),
        credential=load_credential(flags["token_file"], flags["tls_cert"], flags["tls_key"], flags["tls_ca"]),
        settings=ProbeSettings(
            kind=kind,
            operation=flags["op"].value,
            transport=flags["transport"].value,
            sizes=parse_sizes(flags["size"]),
            queue_depth=flags["queue_depth"],
            iterations=iterations,
            duration_s=flags["duration"],
            warmup=flags["warmup"],
            queue_pairs=flags.get("queue_pairs", 1),
            bidirectional=flags.get("bidirectional", False),
            ping_pong=flags.get("ping_pong", False),
            batch=flags.get("batch"),
            signal_every=flags.get("signal_every"),
            inline=flags["inline"],
            memory=flags["memory"].value,
            peer_memory=(flags["peer_memory"] or flags["memory"]).value,
            relaxed_ordering=flags["relaxed_ordering"],
            ordering_rounds=flags["check_ordering"],
        ),
        timeout_s=flags["timeout"],
        device=flags["device"],
        port=flags["port"],
        gid_index=flags["gid_index"],
        inject=flags["inject"].value if flags["inject"] else None,
        samples=flags["samples"] is not None,
        progress=_finish.progress(),
    )


def _write_samples(path: "Path | None", samples: "dict[int, Samples]") -> "KvdiagError | None":
    """Write the samples of each size; what went wrong is returned, for the report is printed all the same."""
    from kvdiag.cli._files import write_parts
    from kvdiag.cli.probe._finish import SAMPLES_HEAD
    from kvdiag.errors import KvdiagError

    if path is None:
        return None
    lines = (f"{size},{value:.9f}\n" for size, taken in samples.items() for value in taken.raw)
    try:
        write_parts(path, chain((SAMPLES_HEAD,), lines), "--samples")
    except KvdiagError as error:
        return error
    return None


def _rounds(flags: dict[str, Any]) -> int:
    """Return how often to measure: as often as an interval needs where something is judged by one."""
    from kvdiag.derive.intervals import FEWEST_SAMPLES

    if flags["rounds"] is not None:
        return int(flags["rounds"])
    return FEWEST_SAMPLES if flags["min_bandwidth"] or flags["baseline"] else 1


def _thresholds(runs: "list[ProbeResult]", max_p99_us: float | None) -> "tuple[Threshold, ...]":
    """Return each size's p99 latency of its worst round against the limit: every round must keep it."""
    from kvdiag.model.probe import Threshold

    if max_p99_us is None:
        return ()
    found = []
    for index, one in enumerate(runs[0].results):
        worst_us = max(run.results[index].latency_s.p99 for run in runs) * 1e6
        found.append(
            Threshold(
                name="--max-p99-us",
                size_bytes=one.size_bytes,
                unit="µs",
                limit=max_p99_us,
                value=worst_us,
                met=worst_us <= max_p99_us,
            )
        )
    return tuple(found)
