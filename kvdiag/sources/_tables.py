"""One table of a trace bundle, JSON Lines or Parquet, as columns; every complaint names file, line and field."""

from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvdiag.errors import InputError, UndeterminedError
from kvdiag.model.bundle import Labels

Floats = NDArray[np.float64]


class Table(Protocol):
    """Columns by name; `numbers` gives NaN for null and refuses NaN, infinity and text."""

    path: Path
    names: tuple[str, ...]
    rows: int

    def place(self, row: int) -> str:
        """Name a row (from 0) as a person would look for it."""
        ...

    def numbers(self, name: str) -> Floats: ...

    def labels(self, name: str) -> Labels: ...

    def texts(self, name: str) -> list[str | None]: ...


def open_table(folder: Path, stem: str, notes: list[str], required: tuple[str, ...] = ()) -> Table | None:
    """Return `<folder>/<stem>.parquet` or `.jsonl`, None where neither exists; both at once is an InputError.

    So is a first row of JSON without a `required` field: a large file of something else is not read to its end.
    """
    parquet, jsonl = folder / f"{stem}.parquet", folder / f"{stem}.jsonl"
    if parquet.exists() and jsonl.exists():
        raise InputError(f"{folder}: holds both {parquet.name} and {jsonl.name}; keep the one that is meant")
    if parquet.exists():
        return ParquetTable(parquet)
    return JsonlTable(jsonl, notes, required) if jsonl.exists() else None


def _refuse_other_rows(place: str, row: dict[str, Any], required: tuple[str, ...]) -> None:
    for name in required:
        if name not in row:
            raise InputError(f"{place}: no column {name}; it has {', '.join(row)}")


class JsonlTable:
    """One JSON object per line; empty lines are skipped, and so is a last line that its writer did not finish."""

    def __init__(self, path: Path, notes: list[str], required: tuple[str, ...] = ()) -> None:
        self.path = path
        self._name = str(path)
        self._lines: list[int] = []
        records: list[dict[str, Any]] = []
        decoder = msgspec.json.Decoder(dict[str, Any])
        content = path.read_bytes()
        lines = content.splitlines()
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                records.append(decoder.decode(line))
            except msgspec.MsgspecError as error:
                begun = line.lstrip().startswith(b"{")
                if number == len(lines) and begun and not content.endswith(b"\n"):
                    notes.append(f"{path.name} line {number}: cut off while it was written; left out")
                    continue
                raise InputError(f"{path} line {number}: not a JSON object ({error}); correct or drop it") from None
            self._lines.append(number)
            if len(records) == 1:
                _refuse_other_rows(f"{path} line {number}", records[0], required)
        self.rows = len(records)
        self.names = tuple(dict.fromkeys(name for record in records for name in record))
        self._columns = {name: [record.get(name) for record in records] for name in self.names}

    def place(self, row: int) -> str:
        return f"{self._name} line {self._lines[row]}"

    def numbers(self, name: str) -> Floats:
        values = self._columns[name]
        for row, value in enumerate(values):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise InputError(f"{self.place(row)}: {name} is {value!r}, not a number; write null for not observed")
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

    def labels(self, name: str) -> Labels:
        codes: dict[str, int] = {}
        texts = self.texts(name)
        rows = [-1 if text is None else codes.setdefault(text, len(codes)) for text in texts]
        return Labels(tuple(codes), np.array(rows, dtype=np.int32))

    def texts(self, name: str) -> list[str | None]:
        values = self._columns[name]
        for row, value in enumerate(values):
            if value is not None and not isinstance(value, str):
                raise InputError(f"{self.place(row)}: {name} is {value!r}, not a text")
        return values


class ParquetTable:
    """A Parquet file, read through pyarrow (extra `analysis`)."""

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError:
            raise UndeterminedError(
                f"{path}: reading Parquet needs the Python package pyarrow: pip install 'kvdiag[analysis]' "
                "(or give the table as .jsonl)"
            ) from None
        try:
            self._table = pq.read_table(path)
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{path}: not a readable Parquet file ({str(error).splitlines()[0]})") from None
        self.path = path
        self._name = str(path)
        self._pa = pa
        self.rows = int(self._table.num_rows)
        self.names = tuple(self._table.column_names)

    def place(self, row: int) -> str:
        return f"{self._name} row {row}"

    def numbers(self, name: str) -> Floats:
        column = self._table.column(name)
        pa = self._pa
        kind = column.type
        if pa.types.is_null(kind):
            return np.full(self.rows, np.nan)
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            raise InputError(f"{self._name}: column {name} is of type {kind}, not a number")
        values = np.asarray(column.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)
        null = np.asarray(column.is_null().to_numpy(), dtype=bool)
        bad = np.flatnonzero(np.isnan(values) & ~null)
        if bad.size:
            raise InputError(f"{self.place(int(bad[0]))}: {name} is NaN; write null for not observed")
        return values

    def labels(self, name: str) -> Labels:
        column = self._text_column(name)
        encoded = column.combine_chunks().dictionary_encode() if self.rows else None
        if encoded is None:
            return Labels((), np.zeros(0, dtype=np.int32))
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
        return Labels(tuple(encoded.dictionary.to_pylist()), codes)

    def texts(self, name: str) -> list[str | None]:
        values: list[str | None] = self._text_column(name).to_pylist()
        return values

    def _text_column(self, name: str) -> Any:
        pa = self._pa
        column = self._table.column(name)
        kind = column.type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)):
            raise InputError(f"{self._name}: column {name} is of type {column.type}, not a text")
        return column.cast(pa.string())
