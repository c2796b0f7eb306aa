"""The true work of a simulated job: a fixed time, or a training with its epochs."""

from __future__ import annotations

import copy
import math
from typing import NamedTuple, Protocol

from farandole.control.scheduler.cluster import Allocation
from farandole.control.scheduler.job import BatchLimits, Noise, TrainingReport
from farandole.control.simulator.application import Application
from farandole.control.simulator.step_times import StepTime


class BatchPlan(NamedTuple):
    """A batch size, split over workers and passes."""

    local: int
    """Samples of each worker in a pass."""
    accumulated: int
    """Number of passes without an allreduce before the pass with one."""

    def batch(self, workers: int) -> int:
        return workers * self.local * (self.accumulated + 1)


class Work(Protocol):
    """The true work of a job."""

    def run(self, seconds: float, allocation: Allocation) -> float:
        """Work for `seconds`, or until the work is done; return the seconds used."""

    def left(self, allocation: Allocation) -> float | None:
        """Return the remaining seconds with an allocation; None: the job may change its batch size meanwhile."""

    def placed(self, allocation: Allocation) -> None:
        """Prepare for a new allocation."""

    @property
    def report(self) -> TrainingReport | None:
        """The job's report about itself."""

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""


class FixedWork:
    """A job that takes a fixed number of slot-seconds, whatever its number of slots."""

    report: TrainingReport | None = None

    def __init__(self, seconds: float, slots: int) -> None:
        self._slot_seconds = seconds * slots

    @property
    def done(self) -> bool:
        return self._slot_seconds <= 1e-9

    def placed(self, allocation: Allocation) -> None:
        pass

    def left(self, allocation: Allocation) -> float | None:
        return self._slot_seconds / allocation.slots

    def run(self, seconds: float, allocation: Allocation) -> float:
        needed = self._slot_seconds / allocation.slots
        if seconds >= needed - 1e-6:
            self._slot_seconds = 0.0
            return min(seconds, needed)
        self._slot_seconds -= seconds * allocation.slots
        return seconds


class Agent(Protocol):
    """The part of a job that chooses its batch size and reports its measurements. It does not know the truth."""

    report: TrainingReport
    adaptive: bool

    def plan(self, allocation: Allocation, limit: float, largest: float) -> BatchPlan:
        """Return the batch for an allocation with memory for `limit` samples in a pass; `largest` was measured."""

    def observe(self, allocation: Allocation, plan: BatchPlan, time: StepTime, noise: Noise, progress: float) -> None:
        """Record the measurements of a step."""


class Training:
    """A training, which is done when the progress of its last epoch is reached.

    Args:
        whole_seconds: whether the time to the end of an epoch is rounded, as in the published simulators.
    """

    def __init__(self, application: Application, agent: Agent, whole_seconds: bool = True) -> None:
        self._application = application
        self._agent = agent
        self._whole_seconds = whole_seconds
        self._plan: BatchPlan | None = None
        self.epoch = 0
        self.progress = 0.0

    @property
    def done(self) -> bool:
        return self.epoch == self._application.epochs

    @property
    def report(self) -> TrainingReport:
        return self._agent.report

    def placed(self, allocation: Allocation) -> None:
        times = self._application.steps[allocation.type]
        self._plan = self._agent.plan(allocation, times.limit(allocation.shape), times.workers_limit(allocation.slots))

    def left(self, allocation: Allocation) -> float | None:
        if self._agent.adaptive:
            return None
        ahead = copy.copy(self)
        ahead._agent = _Silent(self._agent)
        return ahead.run(math.inf, allocation)

    def run(self, seconds: float, allocation: Allocation) -> float:
        used = 0.0
        while used < seconds and not self.done:
            used += self._run_in_epoch(seconds - used, allocation)
        if self._agent.adaptive and not self.done:
            self.placed(allocation)
        return used

    def _run_in_epoch(self, seconds: float, allocation: Allocation) -> float:
        """Train for `seconds`, or to the end of the epoch; return the seconds used."""
        rate = self._rate(allocation)
        goal = self._application.convergence.thresholds[self.epoch]
        if self.progress + rate * seconds < goal:
            self.progress += rate * seconds
            return seconds
        needed = (goal - self.progress) / rate
        self.epoch += 1
        self.progress = goal
        if self._agent.adaptive and not self.done:
            self.placed(allocation)
        return min(seconds, float(round(needed)) if self._whole_seconds else needed)

    def _rate(self, allocation: Allocation) -> float:
        """Return the progress per second, and let the agent observe a step."""
        assert self._plan is not None
        plan = self._plan
        time = self._application.steps[allocation.type].at(allocation.shape, plan.local)
        value, noise = self._application.gain_and_noise(self.epoch, plan.batch(allocation.slots))
        self._agent.observe(allocation, plan, time, noise, self.progress)
        return value / (time.step + plan.accumulated * time.compute) / self._application.constants.slowdown


class _Silent:
    """An agent that keeps its plan and reports nothing, for predictions."""

    adaptive = False

    def __init__(self, agent: Agent) -> None:
        self.report = agent.report

    def plan(self, allocation: Allocation, limit: float, largest: float) -> BatchPlan:
        raise AssertionError("looking ahead does not change the allocation")

    def observe(self, allocation: Allocation, plan: BatchPlan, time: StepTime, noise: Noise, progress: float) -> None:
        pass


def fixed_plan(batch: int, workers: int, limit: float, limits: BatchLimits) -> BatchPlan:
    """Return the split of a fixed batch size over workers whose memory is enough for `limit` samples in a pass.

    One worker with more than the initial batch size uses at least two passes, so that it can measure the noise.
    """
    accumulated = math.ceil(batch / workers / limit) - 1
    if workers == 1 and batch > limits.initial:
        accumulated = max(accumulated, 1)
    return BatchPlan(math.ceil(batch / workers / (accumulated + 1)), accumulated)
