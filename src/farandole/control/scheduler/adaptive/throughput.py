"""A model of a job's step time in configurations that it has not run, fitted to those that it has run.

A pass takes `compute(m)` seconds with m samples for each worker, and the allreduce `network(n, k)` seconds with k
workers on n nodes. Frameworks partly overlap the two, so that a step takes

    step = (compute^g + network^g)^(1/g)          g = 1: no overlap; g -> infinity: full overlap

as in Pollux (Qiao et al., OSDI '21). The fit differs from Pollux, and needs no iteration:

- `compute` is interpolated between measured batch sizes, including a profile with one worker, and corrected by the
  measured slow-down with several workers on a node (they share its processors and its disks). On a type with only one
  measured batch size, `compute` depends on the batch size in the same way as on the type with the most measured sizes.
- `network` of a measured configuration is chosen to reproduce its step time, so the model is exact there. For others,
  it is that of the most similar configuration, scaled like a ring allreduce, which sends 2 (k - 1) / k times the
  gradients.
- On an untried type of node, the ratio of allreduce to compute is assumed to be that of another type (Sia, SOSP '23).
  Before a job has run with several workers, its allreduce is assumed to take no time: a measurement costs a restart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from farandole.control.scheduler.job import Measurement, TrainingReport

Array = NDArray[np.float64]

_OVERLAPS = (1.0, 1.25, 1.6, 2.0, 3.0, 5.0)
_USUAL_OVERLAP = 1.6
_FIXED_ABOVE, _FIXED_BELOW = 0.5, 0.1
"""The part of a pass that is assumed not to depend on the batch size, above and below the only one that was measured.
Both are optimistic, so that other batch sizes are tried."""


class _Group(NamedTuple):
    """The measurements with one number of nodes and workers; the arrays have an entry for each batch size."""

    nodes: int
    workers: int
    locals: Array
    """Samples of each worker in a pass."""
    slower: Array
    """Slow-down of compute relative to one worker."""
    networks: Array
    """Seconds of an allreduce."""

    def distance(self, nodes: int, workers: int) -> float:
        """Return the dissimilarity to another number of nodes and workers."""
        between = 4.0 if (nodes > 1) != (self.nodes > 1) else 0.0
        return between + abs(math.log(workers / self.workers)) + 0.1 * abs(nodes - self.nodes)


class TypeModel:
    """The step times of one job on one type of node.

    Args:
        measured: measurements of its runs there; the last one of each configuration counts.
        profile: measurements with one worker before the start.
        like: the model of another type, from which the dependence on the batch size is taken if only one was measured.
    """

    def __init__(
        self, measured: Sequence[Measurement], profile: Sequence[Measurement], like: TypeModel | None = None
    ) -> None:
        rows = sorted({row[:3]: row for row in measured}.values())
        alone = {row.local: row.step - row.sync for row in (*profile, *rows) if row.workers == 1}
        points = alone or {row.local: row.step - row.sync for row in rows}
        self._locals = np.array(sorted(points))
        self._computes = np.array([points[local] for local in sorted(points)])
        self._like = like
        self.overlap, self.groups = self._grouped([row for row in rows if row.workers > 1])

    @property
    def points(self) -> int:
        """The number of batch sizes for which compute is known."""
        return len(self._locals)

    def compute(self, local: Array) -> Array:
        """Return the seconds of one pass with one worker."""
        locals_, computes = self._locals, self._computes
        if len(locals_) == 1:
            return np.asarray(computes[0] * self._relative(local, float(locals_[0])))
        inside = np.interp(local, locals_, computes)
        slope = max((computes[-1] - computes[0]) / (locals_[-1] - locals_[0]), 0.0)
        return np.asarray(inside + slope * np.maximum(local - locals_[-1], 0.0))

    def _relative(self, local: Array, only: float) -> Array:
        """Return the time of a pass, relative to one with the only measured batch size."""
        if self._like is not None:
            return np.asarray(self._like.compute(local) / self._like.compute(np.array([only])))
        fixed = np.where(local > only, _FIXED_ABOVE, _FIXED_BELOW)
        return np.asarray(fixed + (1 - fixed) * local / only)

    def nearest(self, nodes: int, workers: int) -> _Group | None:
        """Return the measurements of the most similar configuration with several workers."""
        return min(self.groups, key=lambda group: group.distance(nodes, workers), default=None)

    def _grouped(self, rows: Sequence[Measurement]) -> tuple[float, list[_Group]]:
        """Return the overlap, and the measurements with several workers by number of nodes and workers."""
        if not rows:
            return _USUAL_OVERLAP, []
        _, _, locals_, steps, syncs = np.array(rows).T
        computes = steps - syncs
        starts = [at for at, row in enumerate(rows) if at == 0 or row[:2] != rows[at - 1][:2]]
        overlap, networks = _best_overlap(steps, computes, starts)
        slower = computes / self.compute(locals_)
        parts = [slice(*ends) for ends in zip(starts, [*starts[1:], len(rows)], strict=True)]
        return overlap, [_Group(*rows[part.start][:2], locals_[part], slower[part], networks[part]) for part in parts]


def _best_overlap(steps: Array, computes: Array, starts: Sequence[int]) -> tuple[float, Array]:
    """Return the overlap that best explains the step times of different batch sizes with equal workers.

    Args:
        steps: seconds of a step, in the order of the groups of equal workers.
        computes: seconds of compute of these steps.
        starts: index of the first step of each group.

    Returns:
        The overlap, and the seconds of the allreduce of each step that reproduce its time with this overlap.
    """
    overlaps = np.array([_USUAL_OVERLAP] if len(starts) == len(steps) else _OVERLAPS)[:, np.newaxis]
    networks = np.maximum(steps**overlaps - computes**overlaps, 0.0) ** (1 / overlaps)
    counts = np.diff(starts, append=len(steps))
    means = np.repeat(np.add.reduceat(networks, starts, axis=1) / counts, counts, axis=1)
    predicted = (computes**overlaps + means**overlaps) ** (1 / overlaps)
    errors = np.mean(np.log(predicted / steps) ** 2, axis=1) + 1e-4 * (overlaps[:, 0] - _USUAL_OVERLAP) ** 2
    best = int(np.argmin(errors))
    return float(overlaps[best, 0]), networks[best]


class _Layout(NamedTuple):
    """The measurements that are most similar to a configuration, and how they apply to it."""

    group: _Group | None
    own: bool
    """Whether they are of the configuration's own type of node."""
    scale: float
    """Factor of the allreduce's time."""
    overlap: float


Known = Mapping[str, tuple[Measurement, ...]]
"""Measurements by type of node."""


class ThroughputModel:
    """The step times of one job on all types of nodes.

    Args:
        report: the job's report.
        known: measurements of other jobs of the same application; the job's own measurements take precedence.
    """

    def __init__(self, report: TrainingReport, known: Known | None = None) -> None:
        others = known or {}
        types = dict.fromkeys([*report.limits.local, *report.measured, *report.one_slot])
        rows = {type_: (*others.get(type_, ()), *report.measured.get(type_, ())) for type_ in types}
        models = {type_: TypeModel(rows[type_], report.one_slot.get(type_, ())) for type_ in types}
        best = max(models.values(), key=lambda model: model.points, default=None)
        self._models = {
            type_: TypeModel(rows[type_], report.one_slot.get(type_, ()), best)
            if model.points == 1 and best is not None and best.points > 1
            else model
            for type_, model in models.items()
            if model.points
        }
        self._layouts: dict[tuple[str, int, int], _Layout] = {}

    def knows(self, type_: str) -> bool:
        """Return whether there are measurements of a type."""
        return type_ in self._models

    def times(self, type_: str, layouts: Sequence[tuple[int, int]], local: Array) -> tuple[Array, Array]:
        """Return the seconds of a pass without allreduce, and with it, both in the shape of `local`.

        Args:
            type_: type of the nodes.
            layouts: pairs of numbers of nodes and workers, one for each row.
            local: samples of each worker in a pass, of shape (layouts, batch sizes).
        """
        found = [self._layout(type_, nodes, workers) for nodes, workers in layouts]
        slower, network = np.ones_like(local), np.zeros_like(local)
        for row, layout in enumerate(found):
            if layout.group is not None:
                network[row] = layout.scale * np.interp(local[row], layout.group.locals, layout.group.networks)
                if layout.own:
                    slower[row] = np.interp(local[row], layout.group.locals, layout.group.slower)
        overlap = np.array([layout.overlap for layout in found])[:, np.newaxis]
        compute = self._models[type_].compute(local) * slower
        return compute, (compute**overlap + network**overlap) ** (1 / overlap)

    def _layout(self, type_: str, nodes: int, workers: int) -> _Layout:
        """Return the measurements that are most similar to a configuration."""
        key = (type_, nodes, workers)
        if key not in self._layouts:
            self._layouts[key] = self._find_layout(type_, nodes, workers)
        return self._layouts[key]

    def _find_layout(self, type_: str, nodes: int, workers: int) -> _Layout:
        model = self._models[type_]
        own = model.nearest(nodes, workers)
        group, overlap, scale = own, model.overlap, 1.0
        if workers > 1 and (own is None or (nodes == 1) != (own.nodes == 1)):
            group, overlap, scale = self._elsewhere(type_, nodes, workers, own)
        if workers == 1 or group is None:
            return _Layout(None, False, 1.0, 1.0)
        return _Layout(group, group is own, scale * _ring(workers) / _ring(group.workers), overlap)

    def _elsewhere(
        self, type_: str, nodes: int, workers: int, own: _Group | None
    ) -> tuple[_Group | None, float, float]:
        """Return the most similar measurements on any type, their overlap, and the slow-down of this type."""
        best, overlap, scale = own, self._models[type_].overlap, 1.0
        for other, model in self._models.items():
            group = model.nearest(nodes, workers) if other != type_ else None
            if group is None or (best is not None and best.distance(nodes, workers) <= group.distance(nodes, workers)):
                continue
            local = np.array([float(model._locals[0])])
            ratio = float(self._models[type_].compute(local)[0] / model.compute(local)[0])
            best, overlap, scale = group, model.overlap, ratio
        return best, overlap, scale


def _ring(workers: int) -> float:
    return 2 * (workers - 1) / workers
