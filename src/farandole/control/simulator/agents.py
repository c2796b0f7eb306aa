"""Agents: the part of a training job that chooses its batch size and reports its measurements."""

from __future__ import annotations

from dataclasses import replace

from farandole.control.scheduler.adaptive.goodput import GoodputModel
from farandole.control.scheduler.cluster import Allocation
from farandole.control.scheduler.job import BatchLimits, Measurement, Noise, TrainingReport
from farandole.control.simulator.application import Application
from farandole.control.simulator.job_work import BatchPlan, fixed_plan
from farandole.control.simulator.step_times import StepTime


class ReportingAgent:
    """An agent that reports its measurements, and keeps the batch size that the user chose.

    Args:
        batch: samples of all workers together in one step.
    """

    adaptive = False

    def __init__(self, application: Application, batch: int) -> None:
        self.report = TrainingReport(application.limits, one_slot=application.one_slot)
        self._batch = batch
        self._known: set[tuple[str, int, int, int]] = set()

    @property
    def limits(self) -> BatchLimits:
        return self.report.limits

    def plan(self, allocation: Allocation, limit: float, largest: float) -> BatchPlan:
        limit = min(limit, self.limits.local[allocation.type][1])
        return fixed_plan(self._batch, allocation.slots, limit, self.limits)

    def observe(self, allocation: Allocation, plan: BatchPlan, time: StepTime, noise: Noise, progress: float) -> None:
        report = self.report
        key = (allocation.type, len(allocation.parts), allocation.slots, plan.local)
        measured, version = report.measured, report.version
        if key not in self._known:
            self._known.add(key)
            new = Measurement(*key[1:], time.step, time.sync)
            measured = {**measured, allocation.type: (*measured.get(allocation.type, ()), new)}
            version += 1
        if noise != report.noise:
            version += 1
        self.report = replace(report, measured=measured, noise=noise, progress=progress, version=version)


class AdaptiveAgent(ReportingAgent):
    """An agent that chooses the batch size with the best goodput, as predicted from its own measurements."""

    adaptive = True

    def __init__(self, application: Application, batch: int) -> None:
        super().__init__(application, batch)
        self._model = GoodputModel(self.report)

    def plan(self, allocation: Allocation, limit: float, largest: float) -> BatchPlan:
        if self.report is not self._model.report:
            self._model = GoodputModel(self.report, self._model)
        best = self._model.best(allocation.type, len(allocation.parts), allocation.slots, min(limit, largest))
        assert best is not None, f"{allocation} is beyond the job's limits"
        return BatchPlan(best.local, best.accumulated)
