"""Histograms of engines as their exact parts: running sums and counts, whose differences over a window give a mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HistogramSeries:
    """Running sum and count of one quantity, at wall-clock seconds, of a node or of a pair of nodes.

    `quantity` is a column of the request rows (queue_s, prefill_s, wire_s, bytes, ...); a node that is None: all nodes
    of that side.
    """

    quantity: str
    prefill_node: str | None
    decode_node: str | None
    time_s: NDArray[np.float64]
    total: NDArray[np.float64]
    count: NDArray[np.float64]
