"""Exports wait for one thread, in bounded memory; scrapes go first."""

import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable

import pytest

from kvdiag.model.span import Span
from kvdiag_exporters import precedence as module
from kvdiag_exporters.precedence import Precedence, short_waits
from kvdiag_exporters.records.intake import SLICE, Intake


def spans(count: int) -> list[Span]:
    return [
        Span(name=str(number), trace_id="", start_s=1.0, end_s=2.0, attributes={}, resource={})
        for number in range(count)
    ]


def until(met: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 30
    while not met():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


class Slow:
    """Takes spans, each slice only once `go` is set."""

    def __init__(self) -> None:
        self.taken: list[list[Span]] = []
        self.go = threading.Event()

    def __call__(self, part: Iterable[Span]) -> None:
        assert self.go.wait(30)
        self.taken.append(list(part))


def test_what_finds_no_room_is_refused_and_counted_and_the_rest_is_read_in_order() -> None:
    slow = Slow()
    intake = Intake(slow, Precedence(), most_bytes=250)
    intake.start()
    assert [intake.offer(spans(3), 100, 3) for _ in range(4)] == [True, True, False, False]
    assert intake.refused == 6
    slow.go.set()
    until(lambda: intake.offer(spans(SLICE + 1), 10_000, SLICE + 1))  # one alone always has room
    intake.stop(30)
    assert [len(part) for part in slow.taken] == [3, 3, SLICE, 1]
    assert not intake.offer(spans(1), 1, 1)


def test_an_export_that_fails_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    taken: list[Span] = []

    def take(part: Iterable[Span]) -> None:
        found = list(part)
        if len(found) == 2:
            raise ValueError("no")
        taken.extend(found)

    intake = Intake(take, Precedence())
    intake.offer(spans(2), 1, 2)
    intake.offer(spans(3), 1, 3)
    intake.start()
    until(lambda: len(taken) == 3)
    intake.stop(30)
    assert "an export could not be read" in caplog.text


def test_what_is_left_at_the_end_is_told(caplog: pytest.LogCaptureFixture) -> None:
    slow = Slow()
    intake = Intake(slow, Precedence())
    intake.start()
    intake.offer(spans(5), 1, 5)
    intake.stop(0.05)
    assert "about 5 spans that were taken in were not read" in caplog.text
    slow.go.set()


def test_others_stand_back_while_a_scrape_is_answered_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_S", 30.0)
    precedence, order = Precedence(), []

    def other() -> None:
        precedence.give_way()
        order.append("other")

    with precedence, precedence:
        waiting = threading.Thread(target=other)
        waiting.start()
        waiting.join(0.05)
        order.append("scrape")
    waiting.join()
    assert order == ["scrape", "other"]
    monkeypatch.setattr(module, "LONGEST_S", 0.01)
    with precedence:
        other()
    assert order[2:] == ["other"]


def test_short_waits_end_with_their_block() -> None:
    before = (sys.getswitchinterval(), gc.get_threshold())
    with short_waits():
        assert sys.getswitchinterval() == pytest.approx(module.SWITCH_S)
        assert gc.get_threshold() == module.THRESHOLDS
        assert gc.get_freeze_count() > 0
    assert (sys.getswitchinterval(), gc.get_threshold()) == before
    assert gc.get_freeze_count() == 0


def test_what_died_in_a_cycle_goes_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIDY_EVERY_S", 0.01)

    class Cycle:
        """Refers to itself."""

        def __init__(self) -> None:
            self.itself = self

    with short_waits():
        one = Cycle()
        gone = weakref.ref(one)
        gc.collect(1)  # it lives through the young generations
        del one
        until(lambda: gone() is None)
