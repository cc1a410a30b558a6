"""TensorRT-LLM's transfer files, counted into the same metrics as every engine's transfers."""

from collections.abc import Iterator
from pathlib import Path

from kvdiag_exporters.catalog import Metric, Sample
from kvdiag_exporters.collectors.base import Engine, Setup
from kvdiag_exporters.engines.metrics import BY_NAME
from kvdiag_exporters.engines.trtllm_csv import CsvFollower, CsvTransfer
from kvdiag_exporters.going_on import Gone
from kvdiag_exporters.histogram import Histograms

MOST_FILES = 256
"""Two per rank: more are other files."""

# 100 µs to a minute and 16 KiB to 64 GiB, as for per-request records.
_SECONDS = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_BYTES = tuple(float(4**power) for power in range(7, 19))
_COUNTS = tuple(float(4**power) for power in range(11))

INVALID = Metric(
    name="kvdiag_engine_transfer_rows_invalid_total",
    kind="counter",
    labels=("node", "engine", "role"),
    help="Rows of TensorRT-LLM's transfer files that could not be understood.",
)

METRICS = (INVALID,)


class TrtllmCsvCollector:
    def __init__(self, setup: Setup) -> None:
        self._engines = [one for one in setup.engines if one.transfer_csv is not None]
        self._followers: dict[tuple[str, Path], CsvFollower] = {}
        bounds = {
            "transfer_seconds": _SECONDS,
            "transfer_wait_seconds": _SECONDS,
            "transfer_post_seconds": _SECONDS,
            "transfer_size_bytes": _BYTES,
            "transfer_descriptors": _COUNTS,
        }
        self._found = {name: Histograms(BY_NAME[f"kvdiag_engine_{name}"], one) for name, one in bounds.items()}
        self.missing: tuple[str, ...] = ()

    def go_on(self, before: "TrtllmCsvCollector", gone: Gone) -> None:
        """Begin with what was counted before a reload, and where reading ended."""
        self._followers = {key: one for key, one in before._followers.items() if key[0] not in gone.engines}
        for name, histograms in self._found.items():
            histograms.go_on(before._found[name], gone)

    def collect(self) -> Iterator[Sample]:
        """Read what was appended to every engine's files and yield the histograms."""
        missing: list[str] = []
        for engine in self._engines:
            for path in self._paths(engine, missing):
                follower = self._followers.setdefault((engine.name, path), CsvFollower(path))
                try:
                    for transfer in follower.read():
                        self._count(engine, transfer)
                except OSError as error:
                    missing.append(f"engine {engine.name}: {path}: {error.strerror}")
            invalid = sum(one.invalid for (name, _), one in self._followers.items() if name == engine.name)
            yield INVALID.sample(float(invalid), *engine.labels)
        for histograms in self._found.values():
            yield from histograms.samples()
        self.missing = tuple(missing)

    def _paths(self, engine: Engine, missing: list[str]) -> list[Path]:
        assert engine.transfer_csv is not None
        try:
            found = sorted(path for path in engine.transfer_csv.iterdir() if path.suffix == ".csv")
        except OSError as error:
            missing.append(f"engine {engine.name}: {engine.transfer_csv}: {error.strerror}")
            return []
        if len(found) > MOST_FILES:
            missing.append(f"engine {engine.name}: {engine.transfer_csv}: only {MOST_FILES} of {len(found)} files read")
        return found[:MOST_FILES]

    def _count(self, engine: Engine, one: CsvTransfer) -> None:
        def count(name: str, value: float | None, kind: str, evidence: str = "measured") -> None:
            if value is not None:
                labels = (*engine.labels, "trtllm", one.rank, kind, "transfer", evidence)
                self._found[name].observe(value, labels)

        count("transfer_seconds", one.seconds, one.kind)
        count("transfer_size_bytes", one.bytes, one.kind, "derived" if one.derived_size else "measured")
        count("transfer_descriptors", one.descriptors, one.kind)
        count("transfer_wait_seconds", one.queue_s, f"{one.kind}_queue")
        count("transfer_post_seconds", one.prepare_s, one.kind)


def create(setup: Setup) -> TrtllmCsvCollector | None:
    return TrtllmCsvCollector(setup) if any(one.transfer_csv is not None for one in setup.engines) else None
