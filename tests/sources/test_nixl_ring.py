import shutil
import struct
from pathlib import Path

import pytest

from kvdiag.derive.nixl import RingTotals, transfers
from kvdiag.model.missing import Missing
from kvdiag.sources.base import Context
from kvdiag.sources.nixl_ring import SOURCE, read_ring, read_rings

RINGS = Path(__file__).parents[1] / "fixtures/nixl/rings"
MIB = 1 << 20


@pytest.mark.parametrize(("wheel", "version", "event_bytes"), [
    ("1.0.1", 1, 56), ("1.1.0", 2, 48), ("1.2.0", 2, 16), ("1.3.2", 3, 16), ("1.5.0", 4, 16),
])  # fmt: skip
def test_every_layout_gives_what_the_agents_did(wheel: str, version: int, event_bytes: int) -> None:
    found = read_rings(RINGS / wheel)
    assert not isinstance(found, Missing)
    assert found.unreadable == {}
    decode, prefill = found.rings
    for ring in (decode, prefill):
        assert (ring.version, ring.event_bytes, ring.capacity, ring.full) == (version, event_bytes, 64, False)
    totals = RingTotals()
    totals.update(prefill)
    assert totals.totals["tx_bytes"] == 3 * MIB
    assert (totals.counts["tx_requests_num"], totals.counts["memory_registered"]) == (3, 1)
    assert totals.totals["memory_registered"] == totals.totals["memory_deregistered"] == MIB
    assert [(one.direction, one.bytes) for one in transfers(prefill.events)] == [("write", MIB)] * 3
    assert [(one.direction, one.bytes) for one in transfers(decode.events)] == [("read", MIB)]
    assert all(0 < one.post_s <= one.xfer_s < 10 for one in transfers(prefill.events))


def test_an_empty_ring_has_no_events() -> None:
    found = read_rings(RINGS / "0.7.1")
    assert not isinstance(found, Missing)
    assert [ring.events for ring in found.rings] == [(), ()]


def test_reading_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = shutil.copy(RINGS / "1.5.0/prefill-0", tmp_path)
    before = Path(path).read_bytes()
    Path(path).chmod(0o444)
    assert len(read_ring(Path(path)).events) == 14
    assert Path(path).read_bytes() == before


def ring_file(path: Path, read: int, write: int, values: list[int], capacity: int = 4) -> Path:
    """Write a version 4 ring of tx_bytes events with these values in its slots."""
    head = struct.pack("<QQiiQQ", write, read, 4, 4, capacity, capacity - 1)
    path.write_bytes(head + b"".join(struct.pack("<I4xQ", 0, value) for value in values))
    return path


def test_a_full_ring_is_told(tmp_path: Path) -> None:
    ring = read_ring(ring_file(tmp_path / "a", read=2, write=1, values=[30, 0, 10, 20]))
    assert ring.full
    assert ring.events == (("tx_bytes", 10), ("tx_bytes", 20), ("tx_bytes", 30))


def test_totals_survive_a_consumer_and_a_new_agent(tmp_path: Path) -> None:
    path = tmp_path / "a"
    totals = RingTotals()
    totals.update(read_ring(ring_file(path, 0, 2, [1, 2, 0, 0])))
    totals.update(read_ring(ring_file(path, 2, 3, [1, 2, 4, 0])))  # two consumed, one new
    assert (totals.totals["tx_bytes"], totals.missed) == (7, 0)
    totals.update(read_ring(ring_file(path, 1, 2, [16, 32, 4, 8])))  # three new, the first two of them gone
    assert (totals.totals["tx_bytes"], totals.missed) == (39, 2)
    totals.update(read_ring(ring_file(path, 0, 1, [64, 32, 4, 8])))  # a new agent of the same name
    assert (totals.totals["tx_bytes"], totals.missed) == (103, 2)


@pytest.mark.parametrize(("content", "reason"), [
    (b"", "0 bytes"),
    (b"# HELP agent_tx_bytes_total Number of bytes sent by the agent\n" * 9, "its header is not one"),
    (struct.pack("<QQiiQQ", 0, 0, 9, 9, 4, 3) + bytes(64), "version 9 with events of 16 bytes"),
    (struct.pack("<QQiiQQ", 0, 0, 4, 4, 4, 3) + bytes(65), "not known"),
    (struct.pack("<QQiiQQ", 0, 0, 4, 4, 1 << 40, (1 << 40) - 1) + bytes(64), "its header is not one"),
])  # fmt: skip
def test_what_is_no_ring_is_told_and_hides_no_other(content: bytes, reason: str, tmp_path: Path) -> None:
    shutil.copy(RINGS / "1.5.0/prefill-0", tmp_path)
    (tmp_path / "zzz").write_bytes(content)
    found = SOURCE.read(Context(endpoints={"nixl_telemetry": str(tmp_path)}))
    assert not isinstance(found, Missing)
    assert [ring.agent for ring in found.rings] == ["prefill-0"]
    assert reason in found.unreadable[str(tmp_path / "zzz")]


def test_a_missing_folder_is_missing(tmp_path: Path) -> None:
    assert isinstance(SOURCE.read(Context()), Missing)
    found = read_rings(tmp_path / "none")
    assert isinstance(found, Missing)
    assert "none: No such file" in found.missing
