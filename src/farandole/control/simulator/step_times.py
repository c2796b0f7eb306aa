"""True step times: measured for exact placements, interpolated for others.

A *placement* is the shape of an allocation: how many slots of each node are used, in order, such as (4, 4, 2). The
*local batch* is the number of samples of each worker in one forward and backward pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import LinearNDInterpolator
from scipy.spatial import QhullError

from farandole.control.scheduler.errors import SchedulerError
from farandole.control.scheduler.job import Measurement

Shape = tuple[int, ...]
Array = NDArray[np.float64]

MOST_NODES = 16
"""Largest number of nodes of a placement: with more nodes, the step time is that of this number."""


class StepTime(NamedTuple):
    """Seconds of one pass with its all-reduce, and the part of it that the all-reduce adds."""

    step: float
    sync: float

    @property
    def compute(self) -> float:
        return self.step - self.sync


class Measured(NamedTuple):
    """One measured layout: number of nodes, number of workers, local batch, and seconds."""

    nodes: int
    workers: int
    local: float
    step: float
    sync: float


def canonical(shape: Sequence[int]) -> Shape:
    """Return the smallest rotation of a shape without its zeros: the name under which placements are measured."""
    used = tuple(count for count in shape if count)
    return min(used[turn:] + used[:turn] for turn in range(len(used)))


class StepTimes:
    """The measured step times of one application on one type of node.

    Args:
        placements: for each canonical shape, rows (local batch, step, sync).
        layouts: other layouts.
        profiled_nodes: largest number of nodes of this type that was measured; larger allocations are treated as if
            their slots were on this number of nodes.
    """

    def __init__(
        self,
        placements: Mapping[Shape, Sequence[tuple[float, float, float]]],
        layouts: Iterable[Measured],
        profiled_nodes: int,
    ) -> None:
        self._rows: dict[Shape, Array] = {shape: np.array(sorted(rows)) for shape, rows in placements.items()}
        self._layouts = tuple(layouts)
        self._profiled_nodes = profiled_nodes
        self._interpolator: LinearNDInterpolator | None = None
        self._known: dict[tuple[Shape, float], StepTime] = {}
        self._limits: dict[Shape, float] = {}
        self._workers_limits: dict[int, float] = {}
        locals_ = [float(value) for rows in self._rows.values() for value in rows[:, 0]]
        self.min_local, self.max_local = min(locals_), max(locals_)

    def at(self, shape: Sequence[int], local: float) -> StepTime:
        """Return the step time of a placement, with `local` samples of each worker in a pass.

        Raises:
            SchedulerError: no similar placement was measured.
        """
        key = (canonical(self._spread(shape)), local)
        if key not in self._known:
            self._known[key] = self._look_up(*key)
        return self._known[key]

    def limit(self, shape: Sequence[int]) -> float:
        """Return the largest local batch that fits into memory with this placement."""
        shape = canonical(self._spread(shape))
        if shape not in self._limits:
            self._limits[shape] = self._find_limit(shape)
        return self._limits[shape]

    def _find_limit(self, shape: Shape) -> float:
        if shape in self._rows:
            return float(self._rows[shape][-1, 0])
        nodes, workers = min(len(shape), MOST_NODES), sum(shape)
        fitting = [row.local for row in self._layouts if row.nodes >= nodes and row.workers >= workers]
        return max(fitting, default=self.max_local)

    def workers_limit(self, workers: int) -> float:
        """Return the largest local batch measured with any placement of a number of workers."""
        if workers not in self._workers_limits:
            self._workers_limits[workers] = self._find_workers_limit(workers)
        return self._workers_limits[workers]

    def _find_workers_limit(self, workers: int) -> float:
        largest = [float(rows[-1, 0]) for shape, rows in self._rows.items() if sum(shape) == workers]
        largest += [row.local for row in self._layouts if row.workers == workers]
        return max(largest, default=self.max_local)

    def _spread(self, shape: Sequence[int]) -> Sequence[int]:
        nodes = [count for count in shape if count]
        if len(nodes) <= self._profiled_nodes:
            return nodes
        each, more = divmod(sum(nodes), self._profiled_nodes)
        return [each + (index < more) for index in range(self._profiled_nodes)]

    def _look_up(self, shape: Shape, local: float) -> StepTime:
        rows = self._rows.get(shape)
        if rows is not None:
            if not rows[0, 0] <= local <= rows[-1, 0]:
                measured = f"{rows[0, 0]:g} to {rows[-1, 0]:g} were"
                raise SchedulerError(f"a local batch of {local:g} was not measured with {shape}: {measured}")
            step, sync = (float(np.interp(local, rows[:, 0], rows[:, column])) for column in (1, 2))
            return StepTime(step, sync)
        try:
            step, sync = map(float, self._interpolate(min(len(shape), MOST_NODES), sum(shape), local))
        except QhullError:
            step = sync = np.nan  # Too few layouts were measured, or all with one number of nodes.
        if np.isnan(step):
            raise SchedulerError(f"no layout like {shape} with a local batch of {local:g} was measured")
        return StepTime(step, sync)

    def _interpolate(self, nodes: int, workers: int, local: float) -> Array:
        if self._interpolator is None:
            table = self._averaged()
            self._interpolator = LinearNDInterpolator(table[:, :3], table[:, 3:])
        values: Array = self._interpolator([[nodes, workers, local]])[0]
        return values

    def table(self) -> list[Measurement]:
        """Return the true step times, averaged over placements with the same numbers of nodes and workers."""
        return [
            Measurement(int(nodes), int(workers), local, step, sync)
            for nodes, workers, local, step, sync in self._averaged().tolist()
        ]

    def _averaged(self) -> Array:
        """Return all measurements, averaged over those with the same nodes, workers and local batch."""
        groups: dict[tuple[float, float, float], list[tuple[float, float]]] = {}
        for shape, rows in self._rows.items():
            for local, step, sync in rows.tolist():
                groups.setdefault((len(shape), sum(shape), local), []).append((step, sync))
        averages = [(*key, *np.mean(values, axis=0)) for key, values in sorted(groups.items())]
        others = [row for row in self._layouts if row[:3] not in groups]
        return np.array([*averages, *others], dtype=float)
