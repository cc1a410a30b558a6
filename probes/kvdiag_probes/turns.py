"""Passes of one message at a time, in the interpreter: with nothing between a message and what it waits for."""

import time
from collections.abc import Sequence
from itertools import repeat
from typing import Any, Protocol

from kvdiag_probes.completion_queue import CompletionQueue
from kvdiag_probes.ping_pong import Awaited
from kvdiag_probes.waiting import Watch

_SPINS = 64
_SPINS_ALONE = 4096
"""Polls before the processor is offered to others, where each poll late is latency: a sixth of a millisecond, and ten
times that where the processor is emulated, which is longer than a round trip in either case."""


class Turns(Protocol):
    """A pass that has one message outstanding."""

    def one_by_one(self) -> tuple[list[float], list[Any]]:
        """Post each message and take its completion; return when each was posted and the queue's stamp of each end."""
        ...

    def exchange(self, buffer: memoryview, awaited: Sequence[Awaited], *, serves: bool) -> list[float]:
        """Post one message, await the peer's, and so on; who does not serve awaits first.

        A message goes out as soon as the last byte of the one before it is seen, and the completion of the one before
        that is taken while it is under way: taken any earlier it would delay the answer. Returns when each was sent
        and, of who serves, when the last was answered, in seconds of time.perf_counter.
        """
        ...


class InterpretedTurns:
    """The same loops as latency_loops.c, for installations that have no compiled ones."""

    def __init__(self, posts: Sequence[tuple[Any, Any]], queue: CompletionQueue, watch: Watch) -> None:
        self._posts = posts
        self._queue = queue
        self._watch = watch

    def one_by_one(self) -> tuple[list[float], list[Any]]:
        clock = time.perf_counter
        ready, attr, stamp, take = self._queue.ready, self._queue.attr, self._queue.stamp, self._queue.take
        posted_at: list[float] = []
        stamps: list[Any] = []
        polls = range(_SPINS_ALONE)
        for post, head in self._posts:
            posted_s = clock()
            post(head)
            for _ in polls:
                if not ready(attr):
                    break
            else:
                self._await(posted_s)
            stamps.append(stamp())
            posted_at.append(posted_s)
            _, status = take()
            if status:
                raise self._watch.failed(status)
        return posted_at, stamps

    def exchange(self, buffer: memoryview, awaited: Sequence[Awaited], *, serves: bool) -> list[float]:
        clock, polls = time.perf_counter, range(_SPINS_ALONE)
        posts = list(self._posts)
        answers = list(awaited)
        # Who answers begins with the first message, who serves with the answer to its first.
        last = answers.pop() if serves else None
        moments: list[float] = []
        seen_s = clock()
        untaken = False
        if serves:
            post, head = posts.pop(0)
            post(head)
            seen_s = clock()
            moments.append(seen_s)
            untaken = True
        for (post, head), (index, value) in zip(posts, answers, strict=True):
            for _ in polls:
                if buffer[index] == value:
                    break
            else:
                untaken = self._await_byte(buffer, index, value, seen_s, untaken=untaken)
            post(head)
            seen_s = clock()
            moments.append(seen_s)
            if untaken:
                self._await(seen_s)
                self._take()
            untaken = True
        if last is not None:
            untaken = self._await_byte(buffer, last.at, last.value, seen_s, untaken=untaken)
            moments.append(clock())
        if untaken:
            self._await(seen_s)
            self._take()
        return moments

    def _await_byte(self, buffer: memoryview, index: int, value: int, since_s: float, *, untaken: bool) -> bool:
        """Return when the byte has its value; whether the completion that was `untaken` still is.

        A message that failed is never answered: its completion says so.
        """
        while True:
            for _ in repeat(None, _SPINS):
                if buffer[index] == value:
                    return untaken
            if untaken and not self._queue.ready(self._queue.attr):
                self._take()
                untaken = False
            self._watch.idle(since_s)

    def _await(self, since_s: float) -> None:
        """Return when the queue took up a completion."""
        ready, attr = self._queue.ready, self._queue.attr
        while True:
            for _ in repeat(None, _SPINS):
                if not ready(attr):
                    return
            self._watch.idle(since_s)

    def _take(self) -> None:
        _, status = self._queue.take()
        if status:
            raise self._watch.failed(status)
