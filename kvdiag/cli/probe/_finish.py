"""How every probe ends: the document is kept, judged against flags and history, printed, and turned into a code."""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvdiag.cli._output import Format, stdout
from kvdiag.cli.probe._progress import clear_progress
from kvdiag.cli.probe._progress import progress as progress

if TYPE_CHECKING:
    from kvdiag.errors import KvdiagError
    from kvdiag.model.probe import ProbeEnds, TransportProof
    from kvdiag.model.probe_judgement import Judgement, Metric
    from kvdiag_probes.session import ProbeOptions

_RATE = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(?:((?i:x\s*link))|([KMGTkmgt]?)(i?)(B|b|bit)(?:/s|ps))")
SAMPLES_HEAD = "size_bytes,seconds\n"
"""The first line of every file of --samples."""
_DECIMAL = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_rate(text: str, flag: str, link_bytes_per_second: float | None = None) -> float:
    """Return bytes per second of `0.9xlink`, `90Gb/s`, `90gbps`, `11GB/s` or `11GiB/s`; UsageError names the flag.

    b are bits and B bytes, in every spelling.
    UndeterminedError for a share of the link where its rate is not known.
    """
    from kvdiag.errors import UndeterminedError, UsageError

    match = _RATE.fullmatch(text.strip())
    if not match or not float(match[1]):
        raise UsageError(f"{flag}: {text!r} is no rate; write 0.9xlink, 90Gb/s (or 90gbps), 11GB/s or 100MiB/s")
    number = float(match[1])
    if match[2]:
        if link_bytes_per_second is None:
            raise UndeterminedError(f"{flag} {text}: the link's rate is not known here; give a rate such as 90Gb/s")
        return number * link_bytes_per_second
    scale = (_BINARY if match[4] else _DECIMAL)[match[3].upper()]
    return number * scale / (1 if match[5] == "B" else 8)


def check(flags: dict[str, Any]) -> None:
    """Refuse a bad --min-bandwidth, a --tolerance of no --baseline and files that are not to be written to, at once.

    UsageError names the flag.
    """
    from kvdiag.cli.probe._options import TOLERANCE
    from kvdiag.errors import UsageError

    places: dict[Path, str] = {}
    for name in ("out", "samples", "trace"):
        if flags.get(name) is not None and (flags[name].is_file() or not flags[name].exists()):
            other = places.setdefault(flags[name].resolve(), f"--{name}")
            if other != f"--{name}":
                raise UsageError(f"--{name} {flags[name]}: that is {other} too; give a file of its own")
    if flags.get("min_bandwidth"):
        parse_rate(flags["min_bandwidth"], "--min-bandwidth", 1.0)
    if flags["baseline"] is None and flags["tolerance"] != TOLERANCE:
        raise UsageError("--tolerance: only with --baseline FILE, the runs that it is of: give one, or leave it out")
    if flags.get("samples") is not None:
        from kvdiag.cli._files import check_new

        check_new(flags["samples"], "--samples", marks=(SAMPLES_HEAD.encode(),))
    if flags["out"] is not None:
        from kvdiag.sources import probe_history

        probe_history.check(flags["out"])


def refuse_port(flags: dict[str, Any]) -> None:
    """Refuse the flags that choose an RDMA port where the transport is another; UsageError names those given."""
    from kvdiag.errors import UsageError

    names = {"device": "--device", "port": "--port", "gid_index": "--gid-index"}
    given = [flag for name, flag in names.items() if flags[name] is not None]
    if given and flags["transport"].value != "rdma":
        what = "chooses an RDMA port: leave it out" if len(given) == 1 else "choose an RDMA port: leave them out"
        raise UsageError(f"{' and '.join(given)} {what} with --transport {flags['transport'].value}")


def judge_rates(
    flags: dict[str, Any], ends: "ProbeEnds | None", rates: "Iterable[Metric]", directions: int = 1
) -> "tuple[Judgement, ...]":
    """Judge bandwidths against --min-bandwidth, a share of this end's ports; nothing without the flag.

    `directions` are those whose sum the bandwidths are: a link carries its rate each way at once. Undetermined where a
    port's rate is not known: what was measured is kept all the same.
    """
    from kvdiag_probes.compare import link_bytes_per_second

    link = link_bytes_per_second(ends) if ends and flags["min_bandwidth"] else None
    return judge_rates_of(flags, None if link is None else link * directions, rates)


def judge_rates_of(flags: dict[str, Any], link: float | None, rates: "Iterable[Metric]") -> "tuple[Judgement, ...]":
    """Judge bandwidths against --min-bandwidth, a share of `link` bytes per second (None: not known)."""
    if not flags["min_bandwidth"]:
        return ()
    from kvdiag.derive.probe_verdicts import judge, undecided
    from kvdiag.errors import UndeterminedError

    try:
        limit = parse_rate(flags["min_bandwidth"], "--min-bandwidth", link)
    except UndeterminedError as error:
        return tuple(undecided("--min-bandwidth", one, str(error)) for one in rates)
    return tuple(judge("--min-bandwidth", one, limit) for one in rates)


def parse_names(text: str, flag: str, known: Sequence[str]) -> tuple[str, ...]:
    """Return a comma-separated selection in the order given; UsageError names the flag and what there is."""
    from kvdiag.errors import UsageError

    names = tuple(part.strip() for part in text.split(","))
    if set(names) - set(known) or len(set(names)) != len(names):
        raise UsageError(f"{flag}: {text!r}: give each of {', '.join(known)} at most once")
    return names


def parse_counts(text: str, flag: str, most: int) -> tuple[int, ...]:
    """Return a comma-separated list of counts from 1 to `most`; UsageError names the flag."""
    from kvdiag.errors import UsageError

    words = [part.strip() for part in text.split(",")]
    if not all(word.isdecimal() and 1 <= int(word) <= most for word in words) or len(set(words)) != len(words):
        raise UsageError(f"{flag}: {text!r}: give different counts from 1 to {most}, for example 1,2,4")
    return tuple(int(word) for word in words)


def judge_history(
    document: Any,
    metrics: "Iterable[Metric]",
    baseline: Path | None,
    tolerance: float,
) -> "tuple[Judgement, ...]":
    """Judge metrics against the runs in a file that were made alike; nothing without a file.

    Alike means: the same command, host, settings, peer's host and devices.
    """
    if baseline is None:
        return ()
    import json

    import msgspec

    from kvdiag.derive.probe_alike import identity, set_apart
    from kvdiag.derive.probe_verdicts import judge_baseline
    from kvdiag.sources import probe_history

    wanted = json.loads(msgspec.json.encode(document))
    runs = list(probe_history.read(baseline))
    earlier = [
        {one["name"]: one["value"] for one in _metrics_in(run)}
        for run in runs
        if identity(run) == identity(wanted) and not run.get("failure")
    ]
    others = set_apart(wanted, runs)
    return judge_baseline(metrics, earlier, tolerance, f" (of {len(runs)}: {others})" if others else "")


def finish(
    document: Any,
    render: Callable[[Any], Any],
    flags: dict[str, Any],
    metrics: "Iterable[Metric]",
    warning: bool = False,
    failure: "KvdiagError | None" = None,
) -> int:
    """Judge the document against the baseline, print and keep it, and return the exit code.

    A missed limit is 2, one that the samples cannot decide 3, `warning` 1. The document has a field `judgements`.
    A `failure` is raised once what was measured before it is kept. What one output does not take, the other still gets.
    """
    import dataclasses

    from kvdiag.derive.probe_verdicts import worst
    from kvdiag.errors import KvdiagError
    from kvdiag.model.exit_code import ExitCode
    from kvdiag.report.json import encode
    from kvdiag.sources import probe_history

    complete = not getattr(document, "failure", None)
    found = judge_history(document, metrics, flags["baseline"] if complete else None, flags["tolerance"])
    document = dataclasses.replace(document, judgements=(*document.judgements, *found))
    text = encode(document)
    clear_progress()
    try:
        if flags["out"] is not None:
            probe_history.append(flags["out"], text)
    except KvdiagError as error:
        failure = failure or error
    if flags["output"] is Format.JSON:
        stdout().print(text, markup=False, soft_wrap=True)
    else:
        stdout().print(render(document))
    if failure is not None:
        raise failure
    gravest = worst(document.judgements)
    if gravest == "missed":
        return int(ExitCode.CRITICAL)
    if gravest == "undetermined":
        return int(ExitCode.UNDETERMINED)
    return int(ExitCode.WARNING if warning else ExitCode.PASSED)


def unproved(payload_bytes: int) -> "TransportProof":
    """Return the proof of a run that failed before its counts were taken."""
    from kvdiag.model.probe import TransportProof

    return TransportProof(
        status="not_observable",
        payload_bytes=payload_bytes,
        evidence=(),
        missing=("the run failed: how much of its last transfer arrived is not known",),
    )


def _metrics_in(value: Any) -> list[dict[str, Any]]:
    """Find every metric in a document, wherever it stands."""
    if isinstance(value, dict):
        if {"name", "value", "better", "samples"} <= value.keys():
            return [value]
        return [one for part in value.values() for one in _metrics_in(part)]
    return [one for part in value for one in _metrics_in(part)] if isinstance(value, list) else []


def probe_options(given: dict[str, Any]) -> "ProbeOptions":
    """Return the options of a transfer to a peer from a command's flags, for the probes that repeat transfers."""
    from kvdiag.model.probe import ProbeSettings
    from kvdiag_probes.control.address import parse_address
    from kvdiag_probes.control.credential import load_credential
    from kvdiag_probes.session import ProbeOptions
    from kvdiag_probes.sizes import parse_sizes

    return ProbeOptions(
        peer=parse_address(given["peer"], "PEER"),
        credential=load_credential(given["token_file"], given["tls_cert"], given["tls_key"], given["tls_ca"]),
        settings=ProbeSettings(
            kind="bandwidth",
            operation="write",
            transport="rdma",
            sizes=parse_sizes(given["size"]),
            queue_depth=given["queue_depth"],
            iterations=given["iterations"],
            duration_s=None,
            warmup=min(given["queue_depth"], 32),
        ),
        timeout_s=given["timeout"],
        device=given["device"],
        port=given["port"],
        gid_index=given["gid_index"],
        progress=progress(),
    )
