import mmap

import pytest

from kvdiag.errors import UndeterminedError
from kvdiag_probes import pattern
from kvdiag_probes.memory import HUGE_PAGE_BYTES, HostRegion, MemoryKind, allocate, huge_bytes

SMAPS = """\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Size:               4096 kB
AnonHugePages:      2048 kB
VmFlags: rd wr mr mw me ac hg
7f0000400000-7f0000500000 rw-p 00000000 00:00 0
AnonHugePages:         0 kB
"""


@pytest.mark.parametrize("kind", [MemoryKind.HOST, MemoryKind.THP, MemoryKind.HUGE])
def test_host_memory_of_each_kind_holds_a_payload(kind: MemoryKind) -> None:
    size = 3 * 1000 * 1000
    try:
        region = HostRegion(kind, size)
    except UndeterminedError as error:
        if kind is not MemoryKind.HUGE:
            raise
        pytest.skip(f"needs hardware: reserved huge pages: {error}")
    assert len(region.view) == size
    assert region.address % (mmap.PAGESIZE if kind is MemoryKind.HOST else HUGE_PAGE_BYTES) == 0
    pattern.fill(region.view, 5)
    region.push(0, size)
    region.pull(0, size)
    assert pattern.find_mismatch(region.view, 5) is None
    assert "host, " in region.note
    region.close()


def test_huge_pages_are_counted_in_the_mapping_that_holds_the_address() -> None:
    assert huge_bytes(SMAPS, 0x7F0000200000) == 2 << 20
    assert huge_bytes(SMAPS, 0x7F0000400000) == 0
    assert huge_bytes(SMAPS, 0x1000) == 0


def test_auto_takes_host_memory_and_says_why_where_there_is_no_gpu() -> None:
    why = []
    for kind in (MemoryKind.CUDA, MemoryKind.ROCM):
        try:
            allocate(kind, 4096, "rxe0").close()
        except UndeterminedError as error:
            why.append(str(error))
        else:
            pytest.skip("needs hardware: a host without a GPU")
    region = allocate(MemoryKind.AUTO, 4096, "rxe0")
    assert region.note == f"host, {mmap.PAGESIZE} byte pages; auto: {'; '.join(why)}"
    region.close()
