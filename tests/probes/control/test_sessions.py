import threading

import pytest

from kvdiag.errors import InputError, UnavailableError
from kvdiag_probes.control.messages import (
    FillRequest,
    OpenAnswer,
    OpenRequest,
    PassAnswer,
    PassRequest,
    ReceiveRequest,
    ServeRequest,
    VerifyRequest,
)
from kvdiag_probes.control.sessions import Limits, Sessions
from kvdiag_probes.datapath import Transport


class FakeTarget:
    def __init__(self, size: int) -> None:
        self.memory = bytearray(size)
        self.buffer = memoryview(self.memory)
        self.closed = False
        self.calls: list[object] = []

    def push(self, start: int, stop: int) -> None:
        self.calls.append(("push", start, stop))

    def pull(self, start: int, stop: int) -> None:
        self.calls.append(("pull", start, stop))

    def receive(self, request: ReceiveRequest) -> None:
        self.calls.append(request)

    def reap(self, request: VerifyRequest) -> str | None:
        return f"{request.immediates} immediates did not arrive"

    def serve(self, request: ServeRequest) -> None:
        self.calls.append(request)

    def arm(self, request: PassRequest) -> None:
        self.calls.append(request)

    def collect(self) -> PassAnswer:
        return PassAnswer(elapsed_s=0.5)

    def describe(self, session: str) -> OpenAnswer:
        return OpenAnswer(session=session, allocate_s=0, register_s=0, setup_s=0)

    def close(self) -> None:
        self.closed = True


class Fixture:
    def __init__(self, limits: Limits) -> None:
        self.now_s = 0.0
        self.targets: list[FakeTarget] = []
        self.sessions = Sessions(self.make, limits, clock=lambda: self.now_s)

    def make(self, request: OpenRequest, local_address: str) -> FakeTarget:
        self.targets.append(FakeTarget(request.size))
        return self.targets[-1]

    def open(self, size: int = 100) -> str:
        return self.sessions.open(OpenRequest(transport=Transport.TCP, size=size), "127.0.0.1").session


def test_a_part_of_the_buffer_is_filled_and_verified_at_its_offset() -> None:
    fixture = Fixture(Limits())
    name = fixture.open()
    fixture.sessions.fill(name, FillRequest(seed=4, size=40, offset=60))
    assert fixture.sessions.verify(name, VerifyRequest(seed=4, size=40, offset=60)).mismatch is None
    assert bytes(fixture.targets[0].memory[:60]) == bytes(60)
    with pytest.raises(InputError, match="101 bytes asked for"):
        fixture.sessions.fill(name, FillRequest(seed=4, size=41, offset=60))


def test_immediates_that_did_not_come_fail_a_verification() -> None:
    fixture = Fixture(Limits())
    name = fixture.open()
    fixture.sessions.fill(name, FillRequest(seed=4, size=80))
    answer = fixture.sessions.verify(name, VerifyRequest(seed=4, size=80, immediates=3))
    assert answer.mismatch == "3 immediates did not arrive"


def test_a_session_is_filled_verified_and_freed() -> None:
    fixture = Fixture(Limits())
    name = fixture.open()
    fixture.sessions.fill(name, FillRequest(seed=4, size=80))
    assert fixture.sessions.verify(name, VerifyRequest(seed=4, size=80)).mismatch is None
    fixture.targets[0].memory[33] ^= 1
    answer = fixture.sessions.verify(name, VerifyRequest(seed=4, size=80))
    assert answer.mismatch is not None
    assert "offset 33 " in answer.mismatch
    assert fixture.targets[0].calls == [("push", 0, 80), ("pull", 0, 80), ("pull", 0, 80)]
    fixture.sessions.close(name)
    assert fixture.targets[0].closed and len(fixture.sessions) == 0
    with pytest.raises(InputError, match="no session"):
        fixture.sessions.verify(name, VerifyRequest(seed=4, size=80))


def test_names_cannot_be_guessed_from_one_another() -> None:
    fixture = Fixture(Limits())
    names = {fixture.open() for _ in range(8)}
    assert len(names) == 8 and all(len(name) == 32 for name in names)


def test_a_size_past_the_session_s_buffer_is_refused() -> None:
    fixture = Fixture(Limits())
    name = fixture.open(100)
    with pytest.raises(InputError, match="101 bytes asked for, the session's buffer holds 100"):
        fixture.sessions.fill(name, FillRequest(seed=1, size=101))


def test_the_number_of_sessions_and_their_bytes_together_are_bounded() -> None:
    fixture = Fixture(Limits(max_sessions=2, max_buffer_bytes=250))
    first = fixture.open(100)
    with pytest.raises(UnavailableError, match="151 bytes asked for, 150 of 250 left"):
        fixture.open(151)
    fixture.open(150)
    with pytest.raises(UnavailableError, match="all 2 sessions are taken"):
        fixture.open(1)
    fixture.sessions.close(first)
    fixture.open(100)


def test_a_target_that_cannot_be_made_takes_no_room() -> None:
    def broken(request: OpenRequest, local_address: str) -> FakeTarget:
        raise UnavailableError("no device")

    sessions = Sessions(broken, Limits(max_sessions=1, max_buffer_bytes=100))
    for _ in range(3):
        with pytest.raises(UnavailableError, match="no device"):
            sessions.open(OpenRequest(transport=Transport.TCP, size=100), "::1")
    assert len(sessions) == 0


def test_idle_sessions_are_freed_and_used_ones_are_not() -> None:
    fixture = Fixture(Limits(session_idle_s=10))
    idle, used = fixture.open(), fixture.open()
    fixture.now_s = 9
    fixture.sessions.fill(used, FillRequest(seed=1, size=1))
    assert fixture.sessions.reap() == 0
    fixture.now_s = 11
    assert fixture.sessions.reap() == 1
    assert [target.closed for target in fixture.targets] == [True, False]
    with pytest.raises(InputError, match="freed because it was idle"):
        fixture.sessions.fill(idle, FillRequest(seed=1, size=1))
    fixture.now_s = 30
    assert fixture.sessions.reap() == 1


def test_a_session_in_use_is_not_reaped_under_its_user() -> None:
    fixture = Fixture(Limits(session_idle_s=10))
    name = fixture.open()
    fixture.now_s = 100
    entered, leave = threading.Event(), threading.Event()

    def use() -> None:
        with fixture.sessions._used(name, 1):
            entered.set()
            leave.wait(5)

    user = threading.Thread(target=use)
    user.start()
    assert entered.wait(5)
    assert fixture.sessions.reap() == 0
    leave.set()
    user.join()
    assert not fixture.targets[0].closed


def test_close_all_frees_everything() -> None:
    fixture = Fixture(Limits())
    for _ in range(3):
        fixture.open()
    fixture.sessions.close_all()
    assert all(target.closed for target in fixture.targets) and len(fixture.sessions) == 0


def test_a_refusal_says_what_a_killed_probe_still_holds() -> None:
    fixture = Fixture(Limits(max_buffer_bytes=4096, max_sessions=2, session_idle_s=60.0))
    request = OpenRequest(transport=Transport.TCP, size=4096)
    fixture.sessions.open(request, "127.0.0.1")
    with pytest.raises(UnavailableError, match=r"4096 bytes asked for, 0 of 4096 left: use a smaller"):
        fixture.sessions.open(request, "127.0.0.1")
    fixture.now_s = 20.0
    told = (
        r"0 of 4096 left \(4096 bytes are held by 1 sessions that nobody .* of killed probes perhaps; .* in 40 s\): use"
    )
    with pytest.raises(UnavailableError, match=told):
        fixture.sessions.open(request, "127.0.0.1")
