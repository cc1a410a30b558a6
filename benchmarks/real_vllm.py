"""How often diagnose is right on a real vLLM prefill/decode pair: one pair, many recordings, each with a known fault.

    python -m benchmarks.real_vllm --venv FOLDER [--kinds none link chronic prefill prompts] [--runs 5] [--seconds 75]
    python -m benchmarks.real_vllm --again FOLDER

FOLDER of --venv is an environment with vllm, nixl and kvdiag (docs/vllm.md); root is needed for network namespaces.
The exporter records spans, step records, engine metrics, NIXL telemetry and the interfaces; `kvdiag diagnose` does not
learn what was done:

none      nothing
link      from the middle of the run on, the link of the KV caches is limited to --link
chronic   it is that all the time
prefill   from the middle on, requests come faster than prefill serves them
prompts   from the middle on, every other prompt is several times as long

Prints, per kind: runs that were right, runs that blamed the network, registration, connections or layout where those
were innocent, what was said, and the excess of the named cause as a share of what the client saw TTFT grow by. Every
run is a line of runs.jsonl. Ends with 1 where a kind was right in fewer than nine of ten.
"""

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import vllm_load, vllm_pair
from kvdiag.attribution import diagnose
from kvdiag.sources.bundle import read_bundle
from kvdiag_probes.demo.sidecar import Exporter, configuration

RIGHT = 0.9
MACHINE = ("fabric.", "registration.", "connection.", "layout.")
LINK = ("fabric.link_degraded",)
KINDS = ("none", "link", "chronic", "prefill", "prompts")
LENGTHS = (128, 256, 256, 384, 512, 512, 768, 1024)
LONG = (3072, 4096)
RATE, SURGE = 4.0, 3.0
LINK_BITS_PER_SECOND = 400e6
INTERVAL_S = 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, help="environment with vllm, nixl and kvdiag")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--runs", type=int, default=5, help="of each kind")
    parser.add_argument("--seconds", type=float, default=75, help="of arrivals in each run")
    parser.add_argument("--rate", type=float, default=RATE, help="requests per second")
    parser.add_argument("--surge", type=float, default=SURGE, help="times as many in the second half of `prefill`")
    parser.add_argument("--link", type=float, default=LINK_BITS_PER_SECOND, help="bit/s of the slow link")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="where recordings and runs.jsonl are kept; a new folder by default")
    parser.add_argument("--again", type=Path, help="diagnose the recordings of this folder anew instead of running")
    arguments = parser.parse_args()
    if arguments.again is not None:
        lines = (arguments.again / "runs.jsonl").read_text().splitlines()
        runs = [run | outcome(run["kind"], Path(run["bundle"])) for run in map(json.loads, lines)]
    elif arguments.venv is None:
        parser.error("give --venv, or --again for recordings that are there")
    else:
        folder = (arguments.output or Path(tempfile.mkdtemp(prefix="kvdiag-vllm-"))).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        print(f"recordings and runs.jsonl in {folder}", file=sys.stderr)
        runs = list(_all(arguments, folder))
    for line in table(runs):
        print(line)
    right = {kind: statistics.fmean(run["right"] for run in runs if run["kind"] == kind) for kind in _kinds(runs)}
    return 0 if right and min(right.values()) >= RIGHT else 1


def outcome(kind: str, bundle: Path) -> dict[str, Any]:
    """Return what a diagnosis of the recording says, and whether that is right."""
    diagnosis = diagnose(read_bundle(bundle))
    verdict = diagnosis.verdict
    named = next((cause for cause in diagnosis.causes if cause.id == verdict.cause), None)
    guilty = kind in ("link", "chronic")
    machine = str(verdict.cause).startswith(MACHINE)
    return {
        "right": verdict.cause in LINK if guilty else not machine,
        "wrongly_blamed": machine and (not guilty or verdict.cause not in LINK),
        "status": verdict.status,
        "cause": verdict.cause,
        "confidence": verdict.confidence,
        "excess_s": named.excess_mean_s if named else None,
        "where": [*named.nodes, *named.pairs, *named.devices] if named else [],
        "reason": verdict.reason,
        "requests": diagnosis.data.requests,
    }


def table(runs: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Return one line per kind."""
    yield f"{'kind':10}{'right':>7}{'blamed':>8}{'confidence':>12}{'named/added':>13}  said"
    for kind in _kinds(runs):
        mine = [run for run in runs if run["kind"] == kind]
        right = [run for run in mine if run["right"]]
        ratios = [run["excess_s"] / run["added_s"] for run in right if run["excess_s"] and (run["added_s"] or 0) > 0]
        said = Counter(run["cause"] or run["status"] for run in mine)
        yield (
            f"{kind:10}{f'{len(right)}/{len(mine)}':>7}{sum(run['wrongly_blamed'] for run in mine):>8}"
            f"{_middle([run['confidence'] for run in right]):>12}{_middle(ratios):>13}  "
            + ", ".join(f"{what} {count}" for what, count in said.most_common())
        )


def phases(kind: str, arguments: argparse.Namespace) -> list[vllm_load.Phase]:
    """Return the load of a run: two halves, which differ only where the fault is one of load."""
    half_s = arguments.seconds / 2
    usual = vllm_load.Phase(half_s, arguments.rate, LENGTHS)
    if kind == "prefill":
        return [usual, vllm_load.Phase(half_s, arguments.rate * arguments.surge, LENGTHS)]
    if kind == "prompts":
        return [usual, vllm_load.Phase(half_s, arguments.rate, LENGTHS + LONG * (len(LENGTHS) // len(LONG)))]
    return [usual, usual]


def _all(arguments: argparse.Namespace, folder: Path) -> Iterable[dict[str, Any]]:
    # One run of each kind after the other, so that the machine's moods meet all of them alike.
    wanted = [(kind, arguments.first_seed + number) for number in range(arguments.runs) for kind in arguments.kinds]
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with vllm_pair.running(arguments.venv, folder) as pair, (folder / "runs.jsonl").open("a") as rows:
        print("the pair serves; warming up", file=sys.stderr)
        warm_up = vllm_load.asks([vllm_load.Phase(15, arguments.rate, LENGTHS)], seed=0)
        vllm_load.send(warm_up, pair.urls["prefill"], pair.urls["decode"])
        for kind, seed in wanted:
            run = _run(pair, kind, seed, arguments, folder)
            rows.write(json.dumps(run) + "\n")
            rows.flush()
            print(f"{kind} {seed}: {run['cause'] or run['status']} ({run['reason']})", file=sys.stderr)
            yield run


def _run(pair: vllm_pair.Pair, kind: str, seed: int, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    bundle = folder / f"{kind}-{seed}"
    config, address = folder / "exporter.toml", folder / "exporter.address"
    address.unlink(missing_ok=True)
    records = f'\n[records]\notlp_http = "0.0.0.0:{vllm_pair.OTLP_PORT}"\nsettle_s = 2\nattribution_interval_s = 0\n'
    config.write_text(configuration(pair.engines(), address, bundle, INTERVAL_S) + records)
    for path in pair.step_records.values():
        path.unlink(missing_ok=True)  # the exporter reads them from their beginning; the engines begin anew
    exporter = Exporter(config, address, folder / f"{kind}-{seed}.exporter.log")
    first, second = phases(kind, arguments)
    load_before = os.getloadavg()[0]
    exporter.start()
    try:
        wanted = vllm_load.asks([first, second], seed)
        fault_s = time.time() + arguments.seconds / 2
        if kind == "chronic":
            pair.throttle(arguments.link)
        then = (arguments.seconds / 2, lambda: pair.throttle(arguments.link)) if kind == "link" else None
        seen = vllm_load.send(wanted, pair.urls["prefill"], pair.urls["decode"], then)
        time.sleep(6)  # the last spans come, and the exporter settles them
    finally:
        exporter.stop()
        if kind in ("link", "chronic"):
            pair.throttle(None)
    before = [ttft_s for arrival_s, ttft_s in seen if arrival_s < fault_s]
    after = [ttft_s for arrival_s, ttft_s in seen if arrival_s >= fault_s]
    return {
        "kind": kind,
        "seed": seed,
        "added_s": statistics.fmean(after) - statistics.fmean(before) if kind not in ("none", "chronic") else None,
        "ttft_s": [statistics.fmean(before), statistics.fmean(after)],
        "sent": len(wanted),
        "answered": len(seen),
        "load_before": load_before,
        "load_after": os.getloadavg()[0],
        "bundle": str(bundle),
    } | outcome(kind, bundle)


def _kinds(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(str(run["kind"]) for run in runs))


def _middle(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f}" if values else "-"


if __name__ == "__main__":
    sys.exit(main())
