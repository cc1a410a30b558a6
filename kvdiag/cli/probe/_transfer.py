"""What `kvdiag probe bandwidth` and `latency` share: run, print, judge."""

from typing import TYPE_CHECKING, Any, Literal

from kvdiag.cli._output import Format, require, stderr, stdout

if TYPE_CHECKING:
    from pathlib import Path

    from kvdiag.model.probe import ProbeDocument, SizeResult, Threshold
    from kvdiag_probes.distribution import Samples
    from kvdiag_probes.session import ProbeOptions


def run_transfer(kind: Literal["bandwidth", "latency"], **flags: Any) -> int:
    """Run one probe with the flags of its command, print it, and return the exit code."""
    for module in ("numpy", "httpx"):
        require(module, "probes", f"kvdiag probe {kind}")
    from kvdiag.model.exit_code import ExitCode
    from kvdiag.model.probe import ProbeDocument
    from kvdiag.report.json import encode, head
    from kvdiag.report.probe_text import render
    from kvdiag_probes.session import run_probe

    options = _options(kind, flags)
    result = run_probe(options)
    document = ProbeDocument(
        **head("kvdiag.probe/1"),  # type: ignore[arg-type]
        settings=options.settings,
        ends=result.ends,
        durations=result.durations,
        results=result.results,
        proof=result.proof,
        thresholds=_thresholds(result.results, flags["min_gbps"], flags["max_p99_us"]),
        ordering=result.ordering,
    )
    if flags["samples"]:
        _write_samples(flags["samples"], result.samples)
    if flags["output"] is Format.JSON:
        stdout().print(encode(document), markup=False, soft_wrap=True)
    else:
        stdout().print(render(document))
    return _exit_code(document, ExitCode)


def _options(kind: Literal["bandwidth", "latency"], flags: dict[str, Any]) -> "ProbeOptions":
    from kvdiag.errors import UsageError
    from kvdiag.model.probe import ProbeSettings
    from kvdiag_probes.control.address import parse_address
    from kvdiag_probes.control.credential import load_credential
    from kvdiag_probes.session import ProbeOptions
    from kvdiag_probes.sizes import parse_sizes

    if flags["iterations"] is not None and flags["duration"] is not None:
        raise UsageError("--iterations and --duration exclude each other: give one")
    iterations = flags["iterations"]
    if iterations is None and flags["duration"] is None:
        iterations = 1000
    console = stderr()
    show = console.is_terminal
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
        progress=(lambda line: console.print(line, end="\r")) if show else (lambda _: None),
    )


def _write_samples(path: "Path", samples: "dict[int, Samples]") -> None:
    from kvdiag.errors import UsageError

    try:
        with path.open("w") as file:
            file.write("size_bytes,seconds\n")
            for size, taken in samples.items():
                file.writelines(f"{size},{value:.9f}\n" for value in taken.raw)
    except OSError as error:
        raise UsageError(f"--samples {path}: {error.strerror}; give a file that can be written") from error


def _thresholds(
    results: "tuple[SizeResult, ...]", min_gbps: float | None, max_p99_us: float | None
) -> "tuple[Threshold, ...]":
    from kvdiag.model.probe import Threshold

    found = []
    for result in results:
        for name, unit, limit, value, sign in (
            ("--min-gbps", "Gb/s", min_gbps, result.bytes_per_second * 8 / 1e9, 1),
            ("--max-p99-us", "µs", max_p99_us, result.latency_s.p99 * 1e6, -1),
        ):
            if limit is not None:
                met = (value - limit) * sign >= 0
                found.append(
                    Threshold(name=name, size_bytes=result.size_bytes, unit=unit, limit=limit, value=value, met=met)
                )
    return tuple(found)


def _exit_code(document: "ProbeDocument", codes: Any) -> int:
    if not all(bound.met for bound in document.thresholds):
        return int(codes.CRITICAL)
    return int(codes.WARNING if document.proof.status == "contradicted" else codes.PASSED)
