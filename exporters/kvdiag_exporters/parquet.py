"""Rewrites finished trace bundles as Parquet, in a process of its own: python -m kvdiag_exporters.parquet BUNDLE...

A table is replaced when its Parquet file is whole, so that an interrupted run loses nothing and the next one goes on.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kvdiag_exporters.bundle_folder import NAMES

ROWS = 50_000
"""Rows that are held at a time."""
NICE = 19


def start(bundles: Sequence[Path]) -> "subprocess.Popen[bytes] | None":
    """Begin to rewrite those bundles that are not yet; None where all are. OSError where no process can be made."""
    left = [str(one) for one in bundles if any((one / name).exists() for name in NAMES)]
    if not left:
        return None
    command = [sys.executable, "-m", "kvdiag_exporters.parquet", *left]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def rewrite(bundle: Path) -> None:
    """Turn each table of a bundle that nobody writes any more into Parquet; ValueError names a line that is no row.

    Numbers become doubles, texts strings, what is nested its JSON text; a column without any value is left out. A
    table without rows stays as it is.
    """
    for name in NAMES:
        source = bundle / name
        if source.exists() and source.stat().st_size > 0:
            _rewrite(source, source.with_suffix(".parquet"))


def _rewrite(source: Path, target: Path) -> None:
    types: dict[str, type] = {}
    for row in _rows(source):
        for key, value in row.items():
            kind = _kind(value)
            if kind is not None and types.setdefault(key, kind) is not kind:
                raise ValueError(f"{source}: {key} is a text in one row and a number in another")
    new = target.with_suffix(".parquet.new")
    try:
        _write(source, new, types)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    new.replace(target)
    source.unlink()


def _write(source: Path, new: Path, types: dict[str, type]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(key, pa.string() if kind is str else pa.float64()) for key, kind in types.items()])
    with pq.ParquetWriter(new, schema, compression="zstd") as writer:
        batch: list[dict[str, Any]] = []
        for row in _rows(source):
            batch.append({key: _plain(row.get(key)) for key in types})
            if len(batch) == ROWS:
                writer.write_batch(pa.RecordBatch.from_pylist(batch, schema))
                batch.clear()
        writer.write_batch(pa.RecordBatch.from_pylist(batch, schema))
    with new.open("rb") as file:
        os.fsync(file.fileno())


def _rows(source: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows; an unfinished last line, of a writer that was killed, is left out."""
    with source.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise ValueError(f"{source} line {number}: not a JSON object")
            yield row


def _kind(value: Any) -> type | None:
    if value is None:
        return None
    return float if isinstance(value, int | float) else str


def _plain(value: Any) -> str | float | None:
    if value is None or isinstance(value, str):
        return value
    return float(value) if isinstance(value, int | float) else json.dumps(value, separators=(",", ":"))


def main(arguments: Sequence[str]) -> int:
    """Rewrite each bundle that is named; exit code 1 where one could not be, which is told on standard error."""
    failed = 0
    for one in arguments:
        try:
            rewrite(Path(one))
        except (OSError, ValueError) as error:
            sys.stderr.write(f"{one} is not rewritten as Parquet: {error}\n")
            failed = 1
    return failed


if __name__ == "__main__":
    os.nice(NICE)
    sys.exit(main(sys.argv[1:]))
