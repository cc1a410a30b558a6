import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kvdiag.derive.cost_line import cost_line
from kvdiag.derive.intervals import metric
from kvdiag.errors import UndeterminedError
from kvdiag.model.probe_register import RegisterRow, RegisterSettings
from kvdiag_probes import register_probe, registration
from kvdiag_probes.libibverbs import Limits, RegistrationRefusedError


class Kernel:
    """Accounts registrations as the kernel does: pinned bytes against memlock, regions against max_mr."""

    def __init__(self, memlock: int | None = None, max_mr: int = 1 << 20) -> None:
        self.memlock, self.max_mr = memlock, max_mr
        self.held: dict[int, int] = {}
        self.calls = 0

    def register(self, address: int, size: int) -> Any:
        if self.memlock is not None and sum(self.held.values()) + size > self.memlock:
            raise RegistrationRefusedError(errno.ENOMEM)
        if len(self.held) >= self.max_mr:
            raise RegistrationRefusedError(errno.ENOMEM)
        self.calls += 1
        self.held[self.calls] = size
        return self.calls

    def deregister(self, region: Any) -> None:
        del self.held[region]

    def limits(self) -> Limits:
        return Limits(max_mr=self.max_mr, max_mr_size=1 << 40, max_qp=100)


def row(size: int, seconds: float, *, touched: bool = True) -> RegisterRow:
    one = metric("x", "seconds", "lower", [seconds] * 5)
    zero = metric("x", "seconds", "lower", [0.0] * 5)
    return RegisterRow(pages="4KiB", touched=touched, size_bytes=size, register=one, again=one, deregister=zero)


def test_the_memlock_limit_is_reached_to_the_page_and_everything_is_freed() -> None:
    kernel = Kernel(memlock=(5 << 20) + 8192)
    memlock, max_mr, _ = registration.reach_limits(kernel, 64 << 20, 100, kernel.memlock)
    assert (memlock.status, memlock.reached, memlock.refusal) == ("reached", (5 << 20) + 8192, "ENOMEM")
    assert (max_mr.status, max_mr.reached) == ("not_reached", 100)
    assert kernel.held == {}


def test_max_mr_is_told_apart_from_memlock() -> None:
    kernel = Kernel(max_mr=70)
    memlock, max_mr, _ = registration.reach_limits(kernel, 16 << 20, 100, None)
    assert (memlock.status, memlock.allowed, memlock.reached) == ("not_reached", None, 16 << 20)
    assert (max_mr.status, max_mr.reached, max_mr.allowed) == ("reached", 70, 70)
    assert kernel.held == {}


def test_the_line_finds_fixed_and_per_byte_cost() -> None:
    fixed, slope = cost_line([(x, 40e-6 + 7e-11 * x) for x in (4096, 1 << 20, 64 << 20)])
    assert fixed == pytest.approx(40e-6) and slope == pytest.approx(7e-11)
    assert cost_line([(10, 5.0)]) == (0.0, 0.5)
    assert cost_line([(10, 5.0), (20, 4.0)])[1] == 0.0


def test_the_verdict_follows_the_share_of_the_wire_and_the_budget() -> None:
    # 64 MiB in 4.79 + 1.5 ms (soft-RoCE): 1 GiB costs about 100 ms, a 400 Gb/s link moves it in 21 ms.
    rows = [row(1 << 20, 139e-6), row(64 << 20, 6.3e-3), row(64 << 20, 118e-3, touched=False)]
    verdict = registration.judge_path(rows, 1 << 30, 50e9, None)
    assert verdict.on_path == "not_allowed" and verdict.share_of_wire == pytest.approx(0.1 / 0.0215, rel=0.1)
    assert verdict.kv_untouched_s == pytest.approx(16 * 0.118)
    assert "registration may not be in the request path" in verdict.reason
    assert registration.judge_path(rows, 1 << 30, 312.5e6, None).on_path == "allowed"
    assert registration.judge_path(rows, 1 << 30, 50e9, 0.2).on_path == "allowed"
    assert registration.judge_path(rows, 1 << 30, 50e9, 0.05).on_path == "not_allowed"


def test_what_is_refused_is_named_and_the_rest_measured() -> None:
    kernel = Kernel(memlock=2 << 20)

    @contextmanager
    def opened(_: str) -> Iterator[Kernel]:
        yield kernel

    settings = RegisterSettings(
        device="x",
        sizes=(4096, 4 << 20),
        pages=("4KiB",),
        regions=(2,),
        threads=(2,),
        rounds=2,
        kv_bytes=1,
        budget_s=None,
    )
    found = register_probe.measure(settings, 8 << 20, 10, lambda _: None, opened)
    assert [(one.size_bytes, one.touched) for one in found.rows] == [(4096, True), (4096, False)]
    assert [text.partition(":")[0] for text in found.missing[:3]] == [
        "4MiB in 4KiB pages, touched",
        "4MiB in 4KiB pages, untouched",
        "4MiB in 2 regions",
    ]
    assert kernel.held == {}
    kernel.memlock = 0
    with pytest.raises(UndeterminedError, match="x: nothing could be registered: 4KiB in 4KiB pages"):
        register_probe.measure(settings, 8 << 20, 10, lambda _: None, opened)
