from collections.abc import Mapping

import pytest

from kvdiag.derive.kv_blocks import exchanges
from kvdiag.model.kv_geometry import KvGeometry
from kvdiag.model.probe import TransportProof
from kvdiag_probes import pattern
from kvdiag_probes.budget import Budget
from kvdiag_probes.datapath import Operation
from kvdiag_probes.errors import PayloadMismatchError
from kvdiag_probes.kv.measure import Samples, costs, measure, rows
from kvdiag_probes.kv.path import Groups, Timing
from kvdiag_probes.kv.shapes import MODES, Pairs, Shape, measured_pairs, request, shape

TINY = KvGeometry(layers=2, kv_heads=2, head_size=8, dtype_bytes=2, block_tokens=4)


class Copies:
    """Two buffers in one process; a descriptor costs 4 µs of an own clock, a byte 1 ns. Stages as given."""

    def __init__(self, size: int = 1 << 16) -> None:
        self.ends = {False: bytearray(size), True: bytearray(size)}
        self.skip = -1
        self.extra = {"build_s": 0.0, "post_s": 0.0, "wire_s": 0.0, "poll_s": 0.0}

    def transfer(self, operation: Operation, groups: Groups, timeout_s: float, repeats: int) -> Timing:
        writing = operation is Operation.WRITE
        source, target = self.ends[not writing], self.ends[writing]
        blocks = [block for group in groups for block in group]
        for number, block in enumerate(blocks):
            if number != self.skip:
                target[block.target : block.target + block.length] = source[block.source : block.source + block.length]
        moved = sum(block.length for block in blocks)
        wire = 10e-6 + 4e-6 * len(blocks) + 1e-9 * moved
        times = {"build_s": 0.0, "post_s": 0.0, "wire_s": wire, "poll_s": 0.0}
        return Timing(**{name: value + self.extra[name] for name, value in times.items()})

    def fill(self, seed: int, size: int, *, far: bool) -> None:
        pattern.fill(memoryview(self.ends[far])[:size], seed)

    def digest(self, size: int, *, far: bool) -> str:
        return pattern.digest(memoryview(self.ends[far])[:size])

    def prove(self, moved: Mapping[Operation, int]) -> TransportProof:
        raise NotImplementedError


def shapes(prefill_tp: int = 1, decode_tp: int = 1) -> list[Shape]:
    return [shape(TINY, prefill_tp, decode_tp, ((0, 0),), tokens, mode) for tokens in (16, 32, 64) for mode in MODES]


def run(path: Copies, made: list[Shape]) -> Samples:
    return measure(path, made, list(Operation)[:2], 5, 1, 1.0, Budget(None))


def test_the_layouts_are_equal_in_bytes_and_differ_in_descriptors() -> None:
    found = {one.mode: one for one in shapes() if one.tokens == 64}
    assert {one.bytes for one in found.values()} == {64 * 2 * 2 * 2 * 8 * 2}
    assert [found[mode].descriptors for mode in MODES] == [64, 64, 4, 1]
    assert [len(group) for group in found["layer"].groups] == [32, 32]


@pytest.mark.parametrize(("prefill_tp", "decode_tp"), [(1, 1), (2, 1), (1, 2)])
def test_every_layout_arrives_as_it_should_in_both_directions(prefill_tp: int, decode_tp: int) -> None:
    found = rows(run(Copies(), shapes(prefill_tp, decode_tp)))
    assert len(found) == 2 * 3 * len(MODES)
    for row in found:
        assert row.total.samples == 5
        assert row.fastest_s == pytest.approx(10e-6 + 4e-6 * row.descriptors + 1e-9 * row.bytes)


@pytest.mark.parametrize("operation", [Operation.WRITE, Operation.READ])
def test_one_descriptor_that_does_not_arrive_is_found(operation: Operation) -> None:
    path = Copies()
    path.skip = 17
    with pytest.raises(PayloadMismatchError, match=r"64 descriptors .* delivered wrong bytes"):
        measure(path, [shape(TINY, 1, 1, ((0, 0),), 64, "block")], [operation], 1, 1, 1.0, Budget(None))


@pytest.mark.parametrize("stage", ["build", "post", "wire", "poll"])
def test_a_delay_in_one_stage_shows_there_only_and_the_stages_add_up(stage: str) -> None:
    plain, slowed = Copies(), Copies()
    slowed.extra[f"{stage}_s"] = 0.125
    for before, after in zip(rows(run(plain, shapes())), rows(run(slowed, shapes())), strict=True):
        for name in ("build", "post", "wire", "poll"):
            grown = getattr(after, name).value - getattr(before, name).value
            assert grown == pytest.approx(0.125 if name == stage else 0.0)
        stages = sum(getattr(after, name).value for name in ("build", "post", "wire", "poll"))
        assert after.total.value == pytest.approx(stages)


def test_the_fit_predicts_the_size_that_it_has_not_seen() -> None:
    for cost in costs(run(Copies(), shapes()), held_out=32):
        assert cost.model.points == 6
        assert cost.model.per_descriptor_s.value == pytest.approx(4e-6)
        assert {one.tokens for one in cost.predictions} == {32} and len(cost.predictions) == 3
        assert all(abs(one.relative_error) < 1e-6 for one in cost.predictions)


def test_a_request_counts_all_ranks() -> None:
    whole = request(TINY, 2, 1, 64)
    assert (whole.pairs, whole.descriptors, whole.bytes) == (2, 128, 64 * whole.bytes_per_token)


MLA = KvGeometry(layers=3, kv_heads=1, head_size=18, dtype_bytes=2, block_tokens=4, mla=True)


@pytest.mark.parametrize(
    ("geometry", "prefill_tp", "decode_tp", "pairs"),
    [
        (TINY, 2, 1, ((0, 0), (1, 0))),
        (TINY, 1, 2, ((0, 0), (0, 1))),
        (TINY, 4, 2, ((0, 0), (3, 1))),
        (MLA, 2, 4, ((0, 0), (1, 1), (0, 2), (1, 3))),
    ],
)
def test_every_pair_is_moved_alone_and_all_together_and_all_arrives(
    geometry: KvGeometry, prefill_tp: int, decode_tp: int, pairs: Pairs
) -> None:
    assert exchanges(geometry, prefill_tp, decode_tp) == pairs
    chosen = measured_pairs(pairs, "each")
    made = [shape(geometry, prefill_tp, decode_tp, some, 16, mode) for some in chosen for mode in MODES]
    found = rows(run(Copies(), made))
    assert len(found) == 2 * (len(pairs) + 1) * len(MODES)
    together = {row.mode: row for row in found if row.pair is None and row.operation == "write"}
    alone = [row for row in found if row.pair is not None and row.operation == "write"]
    for mode in MODES:
        assert together[mode].bytes == sum(row.bytes for row in alone if row.mode == mode)
        assert together[mode].descriptors == sum(row.descriptors for row in alone if row.mode == mode)
    whole = request(geometry, prefill_tp, decode_tp, 16)
    assert (whole.pairs, whole.bytes) == (len(pairs), together["block"].bytes)
    assert len({row.total.name for row in found}) == len(found)


def test_a_piece_that_one_pair_of_ranks_misses_is_found_among_all() -> None:
    path = Copies()
    moved = shape(TINY, 2, 1, exchanges(TINY, 2, 1), 64, "block")
    path.skip = moved.descriptors - 1
    with pytest.raises(PayloadMismatchError, match="64 tokens, all ranks"):
        measure(path, [moved], [Operation.WRITE], 1, 1, 1.0, Budget(None))


def test_the_first_pair_or_all_together_can_be_asked_for() -> None:
    pairs = exchanges(TINY, 2, 1)
    assert measured_pairs(pairs, "first") == (pairs[:1],)
    assert measured_pairs(pairs, "all") == (pairs,)
    assert measured_pairs(pairs[:1], "each") == (pairs[:1],)


def test_what_was_moved_is_counted_with_its_repeats_and_the_uncounted_round() -> None:
    moved = shape(TINY, 1, 1, ((0, 0),), 16, "block")
    samples = measure(Copies(), [moved], [Operation.WRITE], 3, 5, 1.0, Budget(None))
    assert dict(samples.moved) == {Operation.WRITE: (3 + 1) * 5 * moved.bytes}
