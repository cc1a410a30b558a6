import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest

from kvdiag.derive.cost_line import cost_line
from kvdiag.derive.intervals import metric
from kvdiag.errors import UndeterminedError
from kvdiag.model.gpu import Gpu
from kvdiag.model.missing import Missing
from kvdiag.model.probe_register import RegisterRow, RegisterSettings
from kvdiag_probes import gpu_window, register_probe, registration
from kvdiag_probes.libibverbs import Limits, RegistrationRefusedError
from kvdiag_probes.registration_limits import reach_limits


class Kernel:
    """Accounts registrations as the kernel does: pinned bytes against memlock, regions against max_mr."""

    def __init__(self, memlock: int | None = None, max_mr: int = 1 << 20, max_mr_size: int = 1 << 40) -> None:
        self.memlock, self.max_mr, self.max_mr_size = memlock, max_mr, max_mr_size
        self.held: dict[int, int] = {}
        self.calls = 0

    def register(self, address: int, size: int) -> Any:
        if size > self.max_mr_size:
            raise RegistrationRefusedError(errno.EINVAL)
        if self.memlock is not None and sum(self.held.values()) + size > self.memlock:
            raise RegistrationRefusedError(errno.ENOMEM)
        if len(self.held) >= self.max_mr:
            raise RegistrationRefusedError(errno.ENOMEM)
        self.calls += 1
        self.held[self.calls] = size
        return self.calls

    def register_dmabuf(self, fd: int, size: int) -> Any:
        assert fd >= 0
        return self.register(0, size)

    def deregister(self, region: Any) -> None:
        del self.held[region]

    def limits(self) -> Limits:
        return Limits(max_mr=self.max_mr, max_mr_size=self.max_mr_size, max_qp=100)


def row(size: int, seconds: float, *, touched: bool = True) -> RegisterRow:
    one = metric("x", "seconds", "lower", [seconds] * 5)
    zero = metric("x", "seconds", "lower", [0.0] * 5)
    return RegisterRow(pages="4KiB", touched=touched, size_bytes=size, register=one, again=one, deregister=zero)


def test_the_memlock_limit_is_reached_to_the_page_and_everything_is_freed() -> None:
    kernel = Kernel(memlock=(5 << 20) + 8192)
    memlock, max_mr, _ = reach_limits(kernel, 64 << 20, 100, kernel.memlock)
    assert (memlock.status, memlock.reached, memlock.refusal) == ("reached", (5 << 20) + 8192, "ENOMEM")
    assert (max_mr.status, max_mr.reached) == ("not_reached", 100)
    assert kernel.held == {}


def test_max_mr_is_told_apart_from_memlock() -> None:
    kernel = Kernel(max_mr=70)
    memlock, max_mr, _ = reach_limits(kernel, 16 << 20, 100, None)
    assert (memlock.status, memlock.allowed, memlock.reached) == ("not_reached", None, 16 << 20)
    assert (max_mr.status, max_mr.reached, max_mr.allowed) == ("reached", 70, 70)
    assert kernel.held == {}


def test_one_region_grows_to_max_mr_size_or_says_what_else_stopped_it() -> None:
    found = {
        name: reach_limits(kernel, 8 << 20, 10, None, lambda: 64 << 20)[2]
        for name, kernel in {
            "beyond": Kernel(),
            "reached": Kernel(max_mr_size=(3 << 20) + 4096),
            "memlock": Kernel(memlock=1 << 20),
        }.items()
    }
    assert (found["reached"].status, found["reached"].reached) == ("reached", (3 << 20) + 4096)
    assert found["reached"].refusal == "EINVAL"
    assert (found["beyond"].status, found["beyond"].reached) == ("not_reached", 8 << 20)
    assert "the probe stops at 8388608 bytes" in str(found["beyond"].reason)
    assert (found["memlock"].status, found["memlock"].reached) == ("not_reached", 1 << 20)
    assert found["memlock"].reason == (
        "2097152 bytes in one region were refused with ENOMEM, by something other than max_mr_size"
    )
    scarce = reach_limits(Kernel(), 64 << 20, 10, None, lambda: 4 << 20)[2]
    assert scarce.reached == 1 << 20


def test_every_device_has_the_same_memory_and_none_keeps_it() -> None:
    kernels = [Kernel(), Kernel()]
    row = registration.time_devices(kernels, 1 << 20, 5)
    assert (row.devices, row.size_bytes) == (2, 1 << 20)
    assert [kernel.calls for kernel in kernels] == [10, 10]
    assert all(one.value > 0 for one in (row.one_after_another, row.side_by_side, row.deregister))
    refusing = Kernel(memlock=0)
    with pytest.raises(RegistrationRefusedError):
        registration.time_devices([kernels[0], refusing], 1 << 20, 5)
    assert all(kernel.held == {} for kernel in kernels)


class Graphics:
    """A GPU's driver with so much memory, of which nothing is real but the accounts."""

    name = "GPU 0"
    remedy = "nothing"

    def __init__(self, memory: int, *, dmabuf: bool = True) -> None:
        self.memory, self.dmabuf = memory, dmabuf
        self.allocated: dict[int, int] = {}

    def allocate(self, size: int) -> int:
        if sum(self.allocated.values()) + size > self.memory:
            raise UndeterminedError("cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY")
        self.allocated[len(self.allocated) + 1] = size
        return len(self.allocated)

    def free(self, pointer: int) -> None:
        del self.allocated[pointer]

    def export_dmabuf(self, pointer: int, size: int) -> int:
        if not self.dmabuf:
            raise UndeterminedError("cuMemGetHandleForAddressRange: CUDA_ERROR_NOT_SUPPORTED")
        return os.open(os.devnull, os.O_RDWR)

    def to_device(self, pointer: int, host: int, size: int) -> None: ...

    def from_device(self, host: int, pointer: int, size: int) -> None: ...

    def close(self) -> None: ...


def gpu_with(window: int | Missing) -> Gpu:
    absent = Missing("not asked for")
    return Gpu(
        address="0000:01:00.0",
        name="GPU",
        memory_bytes=1 << 40,
        window_bytes=window,
        window_used_bytes=1024,
        links=absent,
        fabric_state=absent,
        cluster_uuid=absent,
    )


@pytest.mark.parametrize(
    ("kernel", "graphics", "status", "reached", "said"),
    [
        (Kernel(memlock=48 << 20), Graphics(1 << 40), "reached", 48 << 20, "registered by dma-buf"),
        (Kernel(memlock=48 << 20), Graphics(1 << 40, dmabuf=False), "reached", 48 << 20, "registered by peer memory"),
        (Kernel(), Graphics(32 << 20), "not_reached", 32 << 20, "the GPU gives no more memory: cuMemAlloc"),
        (Kernel(), Graphics(1 << 40), "not_reached", 64 << 20, "the probe stops at 67108864 bytes"),
    ],
)
def test_gpu_memory_is_registered_until_the_window_is_full(
    kernel: Kernel, graphics: Graphics, status: str, reached: int, said: str
) -> None:
    row = gpu_window.reach_window(kernel, gpu_window.Window(graphics, lambda: gpu_with(256 << 20)), 64 << 20)
    assert (row.status, row.reached, row.allowed) == (status, reached, 256 << 20)
    assert said in str(row.reason) and "in use before 1024 bytes" in str(row.reason)
    assert kernel.held == {} and graphics.allocated == {}


def test_a_window_that_cannot_be_tried_says_why() -> None:
    refused = gpu_window.Window(Graphics(1 << 40), lambda: gpu_with(1 << 28))
    with pytest.raises(UndeterminedError, match="GPU 0: 16777216 bytes cannot be registered: ENOMEM"):
        gpu_window.reach_window(Kernel(memlock=0), refused, 64 << 20)
    unknown = gpu_window.Window(Graphics(1 << 40), lambda: gpu_with(Missing("NVML: not supported")))
    with pytest.raises(UndeterminedError, match="GPU 0: NVML: not supported"):
        gpu_window.reach_window(Kernel(), unknown, 64 << 20)


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
    unknown = registration.judge_path(rows, 1 << 30, None, None)
    assert unknown.on_path == "undetermined" and "give --budget-ms" in unknown.reason


def no_window(_: str) -> NoReturn:
    raise UndeterminedError("no GPU driver is loaded")


def test_what_is_refused_is_named_and_the_rest_measured() -> None:
    kernel = Kernel(memlock=2 << 20)

    @contextmanager
    def opened(_: str) -> Iterator[Kernel]:
        yield kernel

    settings = RegisterSettings(
        device="x",
        devices=("x", "y"),
        sizes=(4096, 4 << 20),
        pages=("4KiB",),
        regions=(2,),
        threads=(2,),
        rounds=2,
        kv_bytes=1,
        budget_s=None,
    )
    found = register_probe.measure(settings, 8 << 20, 10, lambda _: None, opened, no_window)
    assert [row.devices for row in found.devices] == [1, 2]
    assert (found.limits[-1].status, found.limits[-1].reason) == ("not_observable", "no GPU driver is loaded")
    assert [(one.size_bytes, one.touched) for one in found.rows] == [(4096, True), (4096, False)]
    assert [text.partition(":")[0] for text in found.missing[:3]] == [
        "4MiB in 4KiB pages, touched",
        "4MiB in 4KiB pages, untouched",
        "4MiB in 2 regions",
    ]
    assert kernel.held == {}
    kernel.memlock = 0
    with pytest.raises(UndeterminedError, match="x: nothing could be registered: 4KiB in 4KiB pages"):
        register_probe.measure(settings, 8 << 20, 10, lambda _: None, opened, no_window)
