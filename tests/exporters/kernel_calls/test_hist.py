"""Histograms as a kernel wrote them."""

import errno
from pathlib import Path

import pytest

from kvdiag_exporters.kernel_calls.hist import parse

RECORDED = Path(__file__).parents[2] / "fixtures/kernel_calls"


def read(name: str) -> str:
    return (RECORDED / f"{name}.hist").read_text()


def test_registrations_that_worked_and_two_that_failed() -> None:
    worked, failed = parse(read("ib_uverbs_reg_mr"))
    assert (worked.keys, failed.keys) == (("pid", "ns"), ("pid", "ret"))
    assert sum(one.hits for one in worked.entries) == 40
    assert {one.keys["ret"] for one in failed.entries} == {-errno.EFAULT, -errno.EINVAL}
    for one in worked.entries:
        mean_ns = one.sums["ns"] / one.hits
        assert 2 ** (one.keys["ns"] - 1) < mean_ns <= 2 ** one.keys["ns"]


def test_pinned_bytes_and_an_error_in_place_of_a_pointer() -> None:
    worked, failed = parse(read("ib_umem_get"))
    assert sum(one.sums["bytes"] for one in worked.entries) == 40 << 20
    assert [one.keys["ret"] for one in failed.entries] == [-errno.EFAULT]


def test_states_of_queue_pairs() -> None:
    worked, failed = parse(read("ib_modify_qp_with_udata"))
    counts = dict.fromkeys((1, 2, 3), 0)
    for one in worked.entries:
        counts[one.keys["state"]] += one.hits
    assert counts == {1: 12, 2: 12, 3: 12}
    assert (failed.keys, failed.entries, failed.dropped) == (("pid", "state", "ret"), [], 0)


def test_drops_are_read() -> None:
    text = read("ib_uverbs_reg_mr").replace("Dropped: 0", "Dropped: 17", 1)
    assert [one.dropped for one in parse(text)] == [17, 0]


@pytest.mark.parametrize("text", ["{ pid: 1 } what\n", "# trigger info: hist:keys=pid:vals=x\n{ pid: 1, half\n"])
def test_what_no_kernel_writes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a row of a histogram"):
        parse(text)
