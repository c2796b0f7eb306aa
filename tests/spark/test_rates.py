"""The learning rates of a `LightningEstimator`, which are given for one worker. No Spark is started."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as schedules

import farandole.torch as hvd
from farandole.spark.lightning_training import Rates

RATE, STEPS, SAVED_AFTER = 0.1, 12, 5

SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "none": lambda optimizer: schedules.ConstantLR(optimizer, factor=1.0),
    "StepLR": lambda optimizer: schedules.StepLR(optimizer, 3),
    "LambdaLR": lambda optimizer: schedules.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "OneCycleLR": lambda optimizer: schedules.OneCycleLR(optimizer, max_lr=RATE, total_steps=STEPS + 1),
    "CyclicLR": lambda optimizer: schedules.CyclicLR(optimizer, base_lr=RATE / 10, max_lr=RATE, step_size_up=3),
    "CosineAnnealingLR": lambda optimizer: schedules.CosineAnnealingLR(optimizer, STEPS, eta_min=RATE / 5),
    "CosineAnnealingWarmRestarts": lambda optimizer: schedules.CosineAnnealingWarmRestarts(
        optimizer, 4, eta_min=RATE / 5
    ),
    "ReduceLROnPlateau": lambda optimizer: schedules.ReduceLROnPlateau(
        optimizer, factor=0.5, patience=0, min_lr=RATE / 5
    ),
    "SequentialLR": lambda optimizer: schedules.SequentialLR(
        optimizer,
        [schedules.LinearLR(optimizer, total_iters=4), schedules.CosineAnnealingLR(optimizer, 8, eta_min=RATE / 5)],
        milestones=[4],
    ),
    "ChainedScheduler": lambda optimizer: schedules.ChainedScheduler(
        [schedules.LinearLR(optimizer, total_iters=4), schedules.ExponentialLR(optimizer, 0.9)]
    ),
}


class Training:
    """An optimizer and its schedule, as Lightning's Trainer calls them.

    Args:
        schedule: a function that makes the schedule.
    """

    def __init__(self, schedule: Callable[[torch.optim.Optimizer], Any]) -> None:
        self.optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=RATE, momentum=0.9)
        self.schedule = schedule(self.optimizer)
        self._trainer = SimpleNamespace(
            optimizers=[self.optimizer], lr_scheduler_configs=[SimpleNamespace(scheduler=self.schedule)]
        )

    def start(self) -> None:
        Rates().on_train_start(self._trainer, None)

    def run(self, steps: int) -> Iterator[float]:
        """Make steps, and yield the rate of each."""
        for _ in range(steps):
            yield self.optimizer.param_groups[0]["lr"]
            self.optimizer.step()
            self.schedule.step(*([1.0] if isinstance(self.schedule, schedules.ReduceLROnPlateau) else []))

    def checkpoint(self) -> dict[str, Any]:
        states = {"optimizer_states": [self.optimizer.state_dict()], "lr_schedulers": [self.schedule.state_dict()]}
        Rates().on_save_checkpoint(self._trainer, None, states)
        return states

    def load(self, checkpoint: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(checkpoint["optimizer_states"][0])
        self.schedule.load_state_dict(checkpoint["lr_schedulers"][0])


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Any]:
    """Return a function that sets the number of workers for a block."""

    @contextmanager
    def of(number: int) -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(hvd, "size", lambda: number)
            yield

    return of


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_of_a_schedule_are_multiplied_and_those_of_checkpoints_are_for_one_worker(
    workers: Callable[[int], Any], name: str
) -> None:
    one_worker = list(Training(SCHEDULES[name]).run(STEPS))
    begun, resumed = Training(SCHEDULES[name]), Training(SCHEDULES[name])
    with workers(3):
        begun.start()
        first = list(begun.run(SAVED_AFTER))
        checkpoint = begun.checkpoint()
        rest = list(begun.run(STEPS - SAVED_AFTER))
    assert [*first, *rest] == pytest.approx([3 * rate for rate in one_worker])
    with workers(5):
        resumed.load(checkpoint)
        resumed.start()
        rest = list(resumed.run(STEPS - SAVED_AFTER))
    assert rest == pytest.approx([5 * rate for rate in one_worker[SAVED_AFTER:]])
