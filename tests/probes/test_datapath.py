from kvdiag_probes.datapath import Memory, chain_length, slot_count


def test_a_chain_always_fits_the_queue() -> None:
    for size in (1, 65536, 1 << 20):
        for depth in (1, 2, 3, 4, 16, 128):
            assert 1 <= chain_length(size, depth) <= depth


def test_a_pass_fills_the_queue_but_never_exceeds_what_is_wanted() -> None:
    assert slot_count(1 << 20, 16, 1000) == 16
    assert slot_count(64, 16, 10_000_000) == 4096
    assert slot_count(1 << 20, 64, 1000) == 64
    assert slot_count(64, 16, 5) == 5
    assert slot_count(64 << 10, 1024, 2048) == 1024


def test_memory_is_page_aligned_zeroed_and_closes_with_a_view_still_held() -> None:
    memory = Memory(10_000)
    memory.touch()
    assert bytes(memory.view) == bytes(10_000)
    held = memory.view[:10]
    memory.close()
    assert bytes(held) == bytes(10)
