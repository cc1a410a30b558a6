"""Counters that the kernel keeps for some queue pairs of their own, beside those of their port."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvdiag.model.missing import Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePairCounter:
    """One counter object and the queue pairs bound to it; `values` by the driver's own names, since the object exists.

    `id` is unique for device and port. `type` and `pid` say what its queue pairs have in common, where it was bound by
    that; else they are Missing.
    """

    device: str
    port: int
    id: int
    type: str | Missing
    pid: int | Missing
    queue_pairs: int
    values: Mapping[str, int]
