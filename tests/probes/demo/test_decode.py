import io
import json
from collections.abc import Iterator, Sequence

import pytest

from kvdiag.errors import UnavailableError
from kvdiag.model.transfer import STAGES
from kvdiag_probes.demo import transport
from kvdiag_probes.demo.channel import Channel, Coming, Completed, Endpoint, Loaded, Posted, Registered, Served
from kvdiag_probes.demo.decode import Decoder, on_own_clock, record
from kvdiag_probes.demo.workload import FIRST_STEP_S, SLOT_BYTES, TOKEN_BYTES

POSTED = Posted(
    number=5,
    tokens=100,
    arrival_ns=1_000_000_001,
    compute_ns=1_010_000_007,
    computed_ns=1_030_000_013,
    transfer_ns=1_030_100_000,
    registered_ns=1_060_000_000,
    posted_ns=1_062_000_000,
    first_slot=0,
    last_slot=3,
)


class FakeTarget:
    def __init__(self) -> None:
        self.pool = memoryview(bytearray(4 * SLOT_BYTES))
        self.loaded: list[bytes] = []
        self.due: list[int] = []

    def endpoint(self) -> Endpoint:
        return Endpoint(b"", 0)

    def load(self, metadata: bytes) -> None:
        self.loaded.append(metadata)

    def arrivals(self) -> Sequence[int]:
        due, self.due = self.due, []
        return due

    def fill(self, number: int) -> None:
        for slot in (0, 3):
            self.pool[slot * SLOT_BYTES : slot * SLOT_BYTES + 8] = transport.mark(number)


class Setup:
    def __init__(self) -> None:
        self.target, self.rows = FakeTarget(), io.StringIO()
        self.near, self.far = Channel.pair()
        self.decoder = Decoder((self.target,), self.far, self.rows)

    def finish(self) -> dict[str, object]:
        while not self.decoder.finished:
            self.decoder.step()
        (line,) = self.rows.getvalue().splitlines()
        row: dict[str, object] = json.loads(line)
        return row


@pytest.fixture
def setup() -> Iterator[Setup]:
    made = Setup()
    yield made
    made.near.close()
    made.far.close()


def test_stages_share_their_borders() -> None:
    row = record(POSTED, 12, 1_070_000_019, 1_080_000_023, 5_000_000_000)
    stages = [value for value in (row.stage(name) for name in STAGES) if value is not None]
    assert row.ttft_s == pytest.approx(0.080000022, abs=1e-15)
    assert sum(stages) == pytest.approx(row.ttft_s, abs=1e-12)
    assert row.arrival_s == pytest.approx(6.000000001)
    assert row.register_s == pytest.approx(0.0299)
    assert (row.bytes, row.descriptors, row.direction) == (100 * TOKEN_BYTES, 12, "push")
    assert row.admit_s is None  # nothing waits for slots here: not observed, never zero


def test_data_seen_before_posting_returned_have_no_wire_time() -> None:
    row = record(POSTED, 12, POSTED.posted_ns - 500_000, POSTED.posted_ns + 10_000_000, 0)
    assert row.wire_s == 0
    assert row.post_s == pytest.approx(0.0015)


@pytest.mark.parametrize("notified_first", [True, False])
def test_a_notification_may_overtake_the_announcement(setup: Setup, notified_first: bool) -> None:
    setup.target.fill(5)
    if notified_first:
        setup.target.due = [5]
        setup.decoder.step()
    setup.near.send(Coming(5))
    setup.near.send(POSTED)
    setup.decoder.step()
    if not notified_first:
        setup.target.due = [5]
    setup.near.send(Completed(5, 12, arrived=False))
    setup.near.send(Served(1))
    row = setup.finish()
    assert row["request_id"] == "request-000005"
    assert isinstance(row["first_step_s"], float) and row["first_step_s"] >= FIRST_STEP_S


def test_a_transport_without_notifications_is_told(setup: Setup) -> None:
    setup.target.fill(5)
    for message in (Coming(5), POSTED, Completed(5, 12, arrived=True), Served(1)):
        setup.near.send(message)
    assert setup.finish()["descriptors"] == 12


def test_warm_up_leaves_no_row(setup: Setup) -> None:
    setup.target.fill(-1)
    warm_up = Posted(-1, *(getattr(POSTED, name) for name in Posted.__struct_fields__[1:]))
    for message in (Coming(-1), warm_up, Completed(-1, 12, arrived=True)):
        setup.near.send(message)
    while setup.decoder.wait_s() < FIRST_STEP_S:
        setup.decoder.step()
    assert setup.rows.getvalue() == ""


def test_wrong_data_stop_the_run(setup: Setup) -> None:
    setup.target.fill(4)
    setup.target.due = [5]
    setup.near.send(Coming(5))
    setup.near.send(POSTED)
    with pytest.raises(UnavailableError, match="request 5: slot 0 does not hold the data that were sent"):
        setup.decoder.step()


def test_new_metadata_are_loaded_and_acknowledged(setup: Setup) -> None:
    setup.near.send(Registered(b"regions"))
    setup.decoder.step()
    assert setup.target.loaded == [b"regions"]
    assert list(setup.near.poll()) == [Loaded()]


def test_stamps_of_another_machine_are_put_on_the_own_clock() -> None:
    moved = on_own_clock(POSTED, -250)
    assert record(moved, 8, 1_070_000_000 - 250, 1_080_000_000 - 250, 250) == record(
        POSTED, 8, 1_070_000_000, 1_080_000_000, 0
    )
    assert (moved.number, moved.tokens, moved.last_slot) == (POSTED.number, POSTED.tokens, POSTED.last_slot)


def test_data_are_verified_in_the_pool_they_arrived_in() -> None:
    near, far = Channel.pair()
    first, second, rows = FakeTarget(), FakeTarget(), io.StringIO()
    decoder = Decoder((first, second), far, rows)
    for message in (POSTED, Completed(5, 8, False), Served(1)):
        near.send(message)
    second.fill(5)
    second.due = [5]
    while not decoder.finished:
        decoder.step()
    assert decoder.written == 1
    near.close()
    far.close()
