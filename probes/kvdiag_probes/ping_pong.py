"""What each end of a ping-pong waits for: the last byte of the next message, in memory, as ib_write_lat does."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvdiag_probes import pattern


class Awaited(NamedTuple):
    """Where a message's last byte will lie in the buffer, and the value that it has when the message is there."""

    at: int
    value: int


def expect(buffer: memoryview, seed: int, size: int, slots: int, base: int) -> list[Awaited]:
    """Return what `slots` messages of the seed's pattern, from `base` on, end in, and unset it in the buffer."""
    offsets = np.arange(size - 1, size * slots, size, dtype=np.uint64)
    values = pattern.bytes_at(offsets, seed)
    memory: npt.NDArray[np.uint8] = np.frombuffer(buffer, dtype=np.uint8)
    memory[base + offsets.astype(np.intp)] = ~values
    return [Awaited(base + int(offset), int(value)) for offset, value in zip(offsets, values, strict=True)]
