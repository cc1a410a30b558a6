"""Completion queues as pyverbs offers them: extended with and without the adapter's stamps, and plain."""

import importlib
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from kvdiag.errors import UndeterminedError
from kvdiag_probes import completion_queue
from kvdiag_probes.completion_queue import Completion, CompletionQueue, DeviceClock, Mark
from kvdiag_probes.verbs import preload

_TICKS_PER_S = 156_250_000
"""mlx5's core clock, 156.25 MHz."""


class Clock:
    """A host's clock that only moves when told to, by a microsecond at each look, as looking takes time."""

    now_s = 1000.0

    @classmethod
    def perf_counter(cls) -> float:
        cls.now_s += 1e-6
        return cls.now_s


@dataclass
class Device:
    """What an adapter offers; `ahead_s` is how far its stamps are ahead of the moment of the completion."""

    extended: bool = True
    stamps: bool = False
    ahead_s: float = 0.0
    made: list[int] = field(default_factory=list)
    done: deque[SimpleNamespace] = field(default_factory=deque)
    open: int = 0
    taken_up: int = 0

    def complete(self, wr_id: int, status: int = 0, vendor_err: int = 0) -> None:
        ticks = int((Clock.now_s + self.ahead_s) * _TICKS_PER_S)
        self.done.append(SimpleNamespace(wr_id=wr_id, status=status, vendor_err=vendor_err, ticks=ticks))

    def query_device_ex(self) -> SimpleNamespace:
        clock = _TICKS_PER_S // 1000 if self.stamps else 0
        return SimpleNamespace(completion_timestamp_mask=2**64 - 1 if self.stamps else 0, hca_core_clock=clock)

    def query_rt_values_ex(self) -> tuple[int, int]:
        return 0, int(Clock.now_s * _TICKS_PER_S)


class Extended:
    def __init__(self, device: Device, wanted: Any) -> None:
        if not device.extended:
            raise importlib.import_module("pyverbs.pyverbs_error").PyverbsRDMAError("Failed to create CQEX", 95)
        device.made.append(wanted.wc_flags)
        device.open += 1
        self._device = device
        self._now: Any = None

    def start_poll(self, _: Any) -> int:
        assert self._now is None, "polled again before end_poll"
        if not self._device.done:
            return 2
        self._now = self._device.done.popleft()
        self._device.taken_up += 1
        return 0

    def end_poll(self) -> None:
        self._now = None

    @property
    def wr_id(self) -> int:
        return int(self._now.wr_id)

    @property
    def status(self) -> int:
        return int(self._now.status)

    def read_vendor_err(self) -> int:
        return int(self._now.vendor_err)

    def read_timestamp(self) -> int:
        return int(self._now.ticks)

    def close(self) -> None:
        self._device.open -= 1


class Plain:
    def __init__(self, device: Device, _: int) -> None:
        self._device = device
        device.open += 1

    def poll(self, most: int) -> tuple[int, list[SimpleNamespace]]:
        found = [self._device.done.popleft() for _ in range(min(most, len(self._device.done)))]
        return len(found), found

    def close(self) -> None:
        self._device.open -= 1


@pytest.fixture(autouse=True)
def _queues(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        preload()
    except UndeterminedError as error:
        pytest.skip(str(error))
    module = importlib.import_module("pyverbs.cq")
    monkeypatch.setattr(module, "CQEX", Extended)
    monkeypatch.setattr(module, "CQ", Plain)
    monkeypatch.setattr(module, "CqInitAttrEx", SimpleNamespace)
    monkeypatch.setattr(completion_queue, "time", Clock)


@pytest.mark.parametrize("device", [Device(), Device(stamps=True), Device(extended=False)])
def test_completions_are_read_in_order_and_the_queue_is_freed(device: Device) -> None:
    queue = CompletionQueue(device, 8)
    assert queue.ready(queue.attr)
    for number in range(20):
        device.complete(number)
    assert [queue.take() for _ in range(3) if not queue.ready(queue.attr)] == [(0, 0), (1, 0), (2, 0)]
    device.complete(20, status=12, vendor_err=0x81)
    found, completions = queue.poll(100)
    assert found == 18
    assert completions[-1] == Completion(20, 12, 0x81)
    assert all(before.wr_id + 1 == after.wr_id for before, after in pairwise(completions))
    assert queue.poll(1) == (0, [])
    queue.close()
    assert device.open == 0


def test_no_more_is_taken_up_than_was_asked_for() -> None:
    device = Device()
    queue = CompletionQueue(device, 8)
    for number in range(4):
        device.complete(number)
    assert queue.poll(3)[0] == 3
    assert device.taken_up == 3


def stamped(device: Device) -> tuple[CompletionQueue, list[float], list[float], list[float]]:
    """Return a queue, and of five messages when each was posted, was completed as the queue says, and was seen."""
    queue = CompletionQueue(device, 8)
    queue.begin()
    posted_s, stamps, seen_s = [], [], []
    for number in range(5):
        posted_s.append(Clock.perf_counter())
        Clock.now_s += 10e-6
        device.complete(number)
        Clock.now_s += 2e-3  # The processor was elsewhere.
        assert not queue.ready(queue.attr)
        seen_s.append(Clock.perf_counter())
        stamps.append(queue.stamp())
        queue.take()
    return queue, posted_s, list(queue.times(stamps, posted_s)), seen_s


def test_the_adapters_stamps_end_latencies_where_it_has_them() -> None:
    device = Device(stamps=True)
    queue, posted_s, came_s, seen_s = stamped(device)
    assert device.made[0] != 0
    assert queue.timestamps == "used: latencies end at the adapter's own stamp"
    # What came after the adapter's stamp, two milliseconds here, is no longer the message's.
    assert [came - posted for posted, came in zip(posted_s, came_s, strict=True)] == pytest.approx(
        [10e-6] * 5, abs=1e-6
    )
    assert all(seen - came > 1.9e-3 for came, seen in zip(came_s, seen_s, strict=True))


@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0, 0.5])
def test_stamps_of_another_clock_are_not_believed(ahead_s: float) -> None:
    queue, posted_s, came_s, seen_s = stamped(Device(stamps=True, ahead_s=ahead_s))
    assert "do not fit this host's clock" in queue.timestamps
    assert all(seen <= came for seen, came in zip(seen_s, came_s, strict=True))
    assert all(posted + 2e-3 <= came for posted, came in zip(posted_s, came_s, strict=True))
    assert isinstance(queue.stamp(), float)


@pytest.mark.parametrize("device", [Device(), Device(extended=False)])
def test_a_device_without_stamps_says_so_and_the_hosts_clock_counts(device: Device) -> None:
    queue, _, came_s, seen_s = stamped(device)
    assert queue.timestamps == "not offered by this device"
    assert all(seen <= came for seen, came in zip(seen_s, came_s, strict=True))


def test_a_counter_may_wrap_between_two_marks() -> None:
    clock = DeviceClock(lambda: 0, 0xFF)
    assert clock.host_times([250, 4], Mark(0, 10.0, 246), Mark(0, 11.0, 10)) == pytest.approx([10.2, 10.7])
    assert clock.host_times([5], Mark(0, 10.0, 5), Mark(0, 11.0, 5)) == [10.0]
