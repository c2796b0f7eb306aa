"""A model of a job's step time in configurations that it has not run, fitted to those that it has run.

A pass takes `compute(m)` seconds with m samples for each worker, and the allreduce `network(n, k)` seconds with k
workers on n nodes. Frameworks partly overlap the two, so that a step takes

    step = (compute^g + network^g)^(1/g)          g = 1: no overlap; g -> infinity: full overlap

as in Pollux (Qiao et al., OSDI '21). The fit differs from Pollux, and needs no iteration:

- `compute` is interpolated between measured batch sizes, including a profile with one worker, and corrected by the
  measured slow-down with several workers on a node (they share its processors and its disks).
- `network` of a measured configuration is chosen to reproduce its step time, so the model is exact there. For others,
  it is that of the most similar configuration, scaled like a ring allreduce, which sends 2 (k - 1) / k times the
  gradients.
- On an untried type of node, the ratio of allreduce to compute is assumed to be that of another type (Sia, SOSP '23).
  Before a job has run with several workers, its allreduce is assumed to be free: finding out costs one restart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from farandole.control.scheduler.job import Measurement, TrainingReport

Array = NDArray[np.float64]

_OVERLAPS = (1.0, 1.25, 1.6, 2.0, 3.0, 5.0)
_USUAL_OVERLAP = 1.6


@dataclass(frozen=True)
class _Group:
    """The measurements with one number of nodes and workers; the arrays have an entry for each batch size."""

    nodes: int
    workers: int
    locals: Array
    """Samples of each worker in a pass."""
    slower: Array
    """Slow-down of compute relative to one worker."""
    networks: Array
    """Seconds of an allreduce."""

    @property
    def network(self) -> float:
        return float(self.networks.mean())

    def distance(self, nodes: int, workers: int) -> float:
        """Return the dissimilarity to another number of nodes and workers."""
        between = 4.0 if (nodes > 1) != (self.nodes > 1) else 0.0
        return between + abs(math.log(workers / self.workers)) + 0.1 * abs(nodes - self.nodes)


class TypeModel:
    """The step times of one job on one type of node.

    Args:
        measured: measurements of its runs there.
        profile: measurements with one worker before the start.
    """

    def __init__(self, measured: Sequence[Measurement], profile: Sequence[Measurement]) -> None:
        alone = {row.local: row.step - row.sync for row in (*profile, *measured) if row.workers == 1}
        points = alone or {row.local: row.step - row.sync for row in measured}
        self._locals = np.array(sorted(points))
        self._computes = np.array([points[local] for local in sorted(points)])
        several = [row for row in measured if row.workers > 1]
        self.overlap = self._best_overlap(several)
        self.groups = self._grouped(several, self.overlap)

    @property
    def known(self) -> bool:
        return len(self._locals) > 0

    def compute(self, local: Array) -> Array:
        """Return the seconds of one pass with one worker."""
        locals_, computes = self._locals, self._computes
        if len(locals_) == 1:
            # With one batch size, half of the time is assumed to be independent of it.
            return np.asarray(computes[0] * (0.5 + 0.5 * local / locals_[0]))
        inside = np.interp(local, locals_, computes)
        slope = max((computes[-1] - computes[0]) / (locals_[-1] - locals_[0]), 0.0)
        return np.asarray(inside + slope * np.maximum(local - locals_[-1], 0.0))

    def nearest(self, nodes: int, workers: int) -> _Group | None:
        """Return the measurements of the most similar configuration with several workers."""
        return min(self.groups, key=lambda group: group.distance(nodes, workers), default=None)

    def _best_overlap(self, rows: Sequence[Measurement]) -> float:
        """Return the overlap that best explains the step times of different batch sizes with equal workers."""
        if len({(row.nodes, row.workers) for row in rows}) == len(rows):
            return _USUAL_OVERLAP

        def error(overlap: float) -> float:
            groups = {(group.nodes, group.workers): group for group in self._grouped(rows, overlap)}
            errors = []
            for row in rows:
                group = groups[row.nodes, row.workers]
                step = _join(row.step - row.sync, group.network, overlap)  # The mean over batch sizes.
                errors.append(math.log(step / row.step) ** 2)
            return math.fsum(errors) / len(errors) + 1e-4 * (overlap - _USUAL_OVERLAP) ** 2

        return min(_OVERLAPS, key=error)

    def _grouped(self, rows: Iterable[Measurement], overlap: float) -> list[_Group]:
        groups: dict[tuple[int, int], list[Measurement]] = {}
        for row in rows:
            groups.setdefault((row.nodes, row.workers), []).append(row)
        return [self._group(*key, members, overlap) for key, members in sorted(groups.items())]

    def _group(self, nodes: int, workers: int, rows: Sequence[Measurement], overlap: float) -> _Group:
        rows = sorted({row.local: row for row in rows}.values(), key=lambda row: row.local)
        locals_ = np.array([row.local for row in rows])
        computes = np.array([row.step - row.sync for row in rows])
        networks = np.array([_part(row.step, row.step - row.sync, overlap) for row in rows])
        return _Group(nodes, workers, locals_, computes / self.compute(locals_), networks)


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
        models = {
            type_: TypeModel((*others.get(type_, ()), *report.measured.get(type_, ())), report.one_slot.get(type_, ()))
            for type_ in types
        }
        self._models = {type_: model for type_, model in models.items() if model.known}
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


def _join(compute: float, network: float, overlap: float) -> float:
    return float((compute**overlap + network**overlap) ** (1 / overlap))


def _part(step: float, compute: float, overlap: float) -> float:
    """Return the network time that, joined with `compute`, gives `step`."""
    return float(max(step**overlap - compute**overlap, 0.0) ** (1 / overlap))
