"""NIXL agents' telemetry as it was left behind: rings of single transfers, stores of totals."""

from pathlib import Path

from kvdiag.derive.nixl import transfers
from kvdiag.errors import InputError
from kvdiag.model.nixl import NixlRing, NixlStore
from kvdiag.model.request_file import RequestFile, TelemetryFile
from kvdiag.sources.nixl_mp import SIZE_BYTES, parse_store
from kvdiag.sources.nixl_ring import read_ring


def read_folder(folder: Path) -> tuple[RequestFile, ...]:
    """Return the agents of a folder; files of other kinds in it are passed over."""
    found = []
    for path in sorted(one for one in folder.iterdir() if one.is_file() and one.suffix != ".lock"):
        try:
            found.append(_either(path))
        except (ValueError, OSError):
            continue
    return tuple(found)


def read_file(path: Path) -> RequestFile:
    """Return one agent; InputError where the file is neither a ring nor a store."""
    try:
        return _either(path)
    except ValueError as error:
        raise InputError(f"{path}: binary, and not NIXL telemetry: {error}") from None


def _either(path: Path) -> TelemetryFile:
    with path.open("rb") as file:
        head = file.read(SIZE_BYTES + 1)
    if head.startswith(b"NIXLMPS"):
        return _of_store(parse_store(head, str(path), None))
    return _of_ring(read_ring(path))


def _of_ring(ring: NixlRing) -> TelemetryFile:
    found = tuple(transfers(ring.events))
    notes = []
    if ring.full:
        notes.append(f"{ring.path}: the ring is full, so NIXL dropped what came after")
    if ring.read_position:
        notes.append(f"{ring.path}: a reader took {ring.read_position} events out of the ring before")
    return TelemetryFile(path=ring.path, agent=ring.agent, transfers=found, notes=tuple(notes))


def _of_store(store: NixlStore) -> TelemetryFile:
    done = store.totals["tx_requests_num"] + store.totals["rx_requests_num"]
    moved = store.totals["tx_bytes"] + store.totals["rx_bytes"]
    took_s = store.totals["xfer_time"] / 1e6
    mean = "" if not done else f", on the mean {took_s / done * 1e3:.3g} ms and {moved / done / 1e6:.3g} MB"
    return TelemetryFile(path=store.path, agent=store.agent, totals=f"{done} transfers{mean}")
