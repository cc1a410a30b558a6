"""Every number the ledger needs per request, as named columns of one matrix."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kvdiag.attribution.causes.base import SEEN, Cause, Dose, Driver, Load
from kvdiag.attribution.frame import Floats, Frame
from kvdiag.attribution.workload import co_batch, compute_slowdown
from kvdiag.derive.stages import UNACCOUNTED, fine_stages
from kvdiag.model.missing import Missing

WINSOR = 0.995
"""Slopes are learnt from stages cut at this quantile of each period: one stalled request must not tilt a line."""

GROWN = 2.0
"""Load grew from two standard errors on."""

Scaled = tuple[Floats, float]
"""A column, and by what it is divided."""
Pushes = dict[tuple[str, int], Floats]
"""Waited seconds of every request, by waiting stage and index of the mechanism that lengthened the service."""


@dataclass(frozen=True, slots=True, eq=False)
class Mechanism:
    """A cause with what it has to say about this frame."""

    cause: Cause
    dose: Dose | Missing
    drivers: tuple[Driver, ...] | Missing
    load: Load | Missing
    strength: float

    @property
    def active_dose(self) -> Dose | None:
        """The dose, if the mechanism changed."""
        return self.dose if isinstance(self.dose, Dose) and self.dose.moved else None


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """`matrix` by column: 1, drivers, doses, two unknown steps, pushes, winsorised stages, stages.

    `driver_of[j]` and `dose_of[j]` are indices into `mechanisms`, `push_of[j]` a waiting stage and such an index;
    `stage_drivers[s]` and `stage_doses[s]` list which of them act in stage s; `owner[s]` is the mechanism that owns
    stage s, or -1; `served` as in `build_columns`; `slowdown` is the logarithm of what slows prefill unexplained;
    `driver_by_load` lists the drivers whose seconds belong to the factors of the load, `driver_shared` what parts of a
    driver belong to which other mechanisms.
    """

    mechanisms: tuple[Mechanism, ...]
    stages: tuple[str, ...]
    matrix: Floats
    drivers: slice
    doses: slice
    unknown: slice
    pushes: slice
    cut: slice
    raw: slice
    driver_of: tuple[int, ...]
    dose_of: tuple[int, ...]
    push_of: tuple[tuple[str, int], ...]
    served: frozenset[str]
    ceilings: Floats
    dose_turn: tuple[int, ...]
    stage_drivers: tuple[tuple[int, ...], ...]
    stage_doses: tuple[tuple[int, ...], ...]
    owner: tuple[int, ...]
    slowdown: float = 0.0
    driver_by_load: frozenset[int] = frozenset()
    driver_shared: Mapping[int, Mapping[int, float]] = field(default_factory=dict)

    @property
    def total(self) -> NDArray[np.float64]:
        """The weights that add the raw stages up to TTFT."""
        weights = np.zeros(self.matrix.shape[1])
        weights[self.raw] = 1.0
        return weights


def mechanisms(frame: Frame, causes: tuple[Cause, ...]) -> tuple[Mechanism, ...]:
    """Ask every cause for its dose, drivers and load."""
    return tuple(_mechanism(frame, cause) for cause in causes)


def _mechanism(frame: Frame, cause: Cause) -> Mechanism:
    absent = Missing("this cause has none")
    dose = cause.dose(frame) if cause.dose else absent
    strength = cause.strength(frame) if cause.strength else SEEN
    return Mechanism(
        cause=cause,
        dose=dose,
        drivers=cause.drivers(frame) if cause.drivers else (),
        load=cause.load(frame) if cause.load else absent,
        strength=dose.strength if isinstance(dose, Dose) else strength,
    )


def build_columns(
    frame: Frame, found: tuple[Mechanism, ...], pushes: Pushes | None = None, served: frozenset[str] = frozenset()
) -> Columns:
    """Lay out the matrix; `pushes` holds waited seconds per request by waiting stage and by the mechanism behind them.

    `served` names the waiting stages whose waits follow from their service, so that doses need not explain them.
    """
    pushes = pushes or {}
    stages = frame.stages.names
    fine = [set(fine_stages(name)) for name in stages]
    driver_columns, driver_of, driver_stages, by_load = list[Scaled](), list[int](), [], set[int]()
    shared: dict[int, dict[int, float]] = {}
    positions = {mechanism.cause.id: index for index, mechanism in enumerate(found)}
    dose_columns, dose_of, ceilings, turn = list[Scaled](), [], [], []
    for index, mechanism in enumerate(found):
        for driver in () if isinstance(mechanism.drivers, Missing) else mechanism.drivers:
            driver_columns.append((driver.column, _size(driver.column)))
            if driver.by_load:
                by_load.add(len(driver_of))
            shared[len(driver_of)] = {positions[one]: part for one, part in driver.shared.items() if one in positions}
            driver_of.append(index)
            driver_stages.append(set(driver.stages))
        dose = mechanism.active_dose
        if dose is not None:
            sizes = [_size(column) for column in dose.columns]
            dose_columns += zip(dose.columns, sizes, strict=True)
            ceilings += [ceiling * one for ceiling, one in zip(dose.ceilings, sizes, strict=True)]
            dose_of += [index] * len(dose.columns)
            turn += [dose.turn] * len(dose.columns)
    size = frame.number("bytes")
    step = frame.incident.astype(np.float64)
    unknown = [step, step if size is None else step * size / max(float(size.mean()), 1.0)]
    raw = [(frame.stages.seconds[:, s], 1.0) for s in range(len(stages))]
    groups: list[list[Scaled]] = [
        [(np.ones(frame.rows), 1.0)],
        driver_columns,
        dose_columns,
        [(column, 1.0) for column in unknown],
        [(column, 1.0) for column in pushes.values()],
        raw,  # cut when it is written: of a million rows, there is no room for each column twice
        raw,
    ]
    edges = np.cumsum([0, *(len(group) for group in groups)]).tolist()
    slices = [slice(a, b) for a, b in pairwise(edges)]
    return Columns(
        mechanisms=found,
        stages=stages,
        matrix=_matrix(frame, groups, slices[5]),
        drivers=slices[1],
        doses=slices[2],
        unknown=slices[3],
        pushes=slices[4],
        cut=slices[5],
        raw=slices[6],
        driver_of=tuple(driver_of),
        dose_of=tuple(dose_of),
        push_of=tuple(pushes),
        served=served,
        ceilings=np.array(ceilings, dtype=np.float64),
        dose_turn=tuple(turn),
        stage_drivers=tuple(tuple(j for j, wanted in enumerate(driver_stages) if wanted & parts) for parts in fine),
        stage_doses=tuple(
            tuple(j for j, index in enumerate(dose_of) if set(found[index].cause.stages) & parts) for parts in fine
        ),
        owner=tuple(_owner(found, name) for name in stages),
        slowdown=0.0 if frame.standing else _slowdown(frame, found),
        driver_by_load=frozenset(by_load),
        driver_shared=shared,
    )


def _slowdown(frame: Frame, found: tuple[Mechanism, ...]) -> float:
    """Return the logarithm of what slows prefill unexplained.

    Engines that compute what has arrived together take longer per request the more arrives, at most in proportion:
    where batches were not recorded, only what goes beyond the growth of the load is unexplained.
    """
    slow = compute_slowdown(frame)
    if slow <= 0 or co_batch(frame) is not None:
        return slow
    loads = [one.load for one in found if one.cause.workload and isinstance(one.load, Load)]
    grown = [np.log(load.ratio) for load in loads if load.ratio > 0 and np.log(load.ratio) > GROWN * load.error]
    return max(slow - float(sum(grown)), 0.0)


def _matrix(frame: Frame, groups: list[list[Scaled]], cut: slice) -> Floats:
    """Return the columns side by side, each divided by its size, those of `cut` winsorised."""
    every = [one for group in groups for one in group]
    matrix = np.empty((frame.rows, len(every)))
    for place, (column, size) in enumerate(every):
        matrix[:, place] = _cut(column, frame.incident) if cut.start <= place < cut.stop else column / size
    return matrix


def _size(column: Floats) -> float:
    """Return the root mean square, to keep the Gram matrix well conditioned (1 for a column of zeros)."""
    return float(np.sqrt(np.mean(column**2))) or 1.0


def _cut(values: Floats, incident: NDArray[np.bool_]) -> Floats:
    cut = values.copy()
    for rows in (incident, ~incident):
        if rows.any():
            cut[rows] = np.minimum(values[rows], np.quantile(values[rows], WINSOR))
    return cut


def _owner(found: tuple[Mechanism, ...], stage: str) -> int:
    if stage == UNACCOUNTED:
        return -1
    owners = [i for i, one in enumerate(found) if stage in one.cause.owns and one.active_dose is not None]
    return owners[0] if owners else -1
