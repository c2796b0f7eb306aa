"""Jobs of `python -m benchmarks queue`: the work that is predicted, and the trainings that are compared."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.sharing import models
from benchmarks.sharing.bench import jobs
from benchmarks.sharing.prediction import Costs, Job, Training, predicted

from farandole.control.scheduler.cluster import Allocation
from farandole.control.scheduler.rules import Rules

COSTS = Costs(1.0, 1.0, hand_over=0.5, elastic_hand_over=0.5, shrink=1.5, leave=1.0, join=2.0)
ONE, TWO = Allocation("slot", ((0, 1),)), Allocation("slot", ((0, 2),))


def test_workers_come_and_leave_some_time_after_it_was_decided() -> None:
    work = Training(20.0, COSTS)
    work.placed(ONE)
    assert work.run(3.0, ONE) == 3.0 and work.left(ONE) == 17.0
    work.placed(TWO)
    assert work.left(TWO) == pytest.approx(2.0 + 15.0 / 2)
    assert work.run(4.0, TWO) == 4.0 and work.most == 2 and work.left(TWO) == pytest.approx(5.5)
    work.placed(ONE)
    assert work.left(ONE) == pytest.approx(1.0 + 9.0)
    work.suspended()
    work.placed(TWO)
    assert work.left(TWO) == pytest.approx(5.5), "what has just started has all its workers"


def test_who_grows_into_slots_of_others_waits_until_these_are_free() -> None:
    # Both have the six slots to themselves, one after the other; then they share them.
    both = [Job("a", "timed", "1:6", 120, 0.0), Job("b", "timed", "3", 24, 0.0)]
    prediction = predicted("equal", Rules(), both, {"a": 0.0, "b": 4.0}, COSTS)
    assert [(at, job, slots) for at, job, slots in prediction.story if job == "a"] == [
        (0.0, "a", "h1:2,h2:2,h3:2"),
        (4.0, "a", "h1:2,h2:1"),
        (10.5, "a", "h1:2,h2:2,h3:2"),
    ]
    # b: 4.0 + 1.5 until the slots are free + 1.0 for its start + 4.0 of work.
    assert prediction.ends["b"] == pytest.approx(10.5)
    # a: 60 slot-seconds: 3 s with 6, 1 s more until three have left, 5.5 s with 3, 2 s until they are back.
    done = 3 * 6 + 1 * 6 + 5.5 * 3 + 2 * 3
    assert prediction.ends["a"] == pytest.approx(12.5 + (60 - done) / 6)


@pytest.mark.parametrize("model", models.MODELS)
def test_a_training_does_not_see_how_its_batches_were_shared_out(model: str) -> None:
    data, state = models.load(model), models.begin(model)
    whole = models.gradients(state, data.inputs[:48], data.targets[:48])
    parts = [models.gradients(state, data.inputs[at : at + 16], data.targets[at : at + 16]) for at in (0, 16, 32)]
    for mine, *others in zip(whole, *parts, strict=True):
        np.testing.assert_allclose(mine, sum(others) / 3, atol=1e-12)
    before, after = models.quality(state, data), models.train_alone(model, 20, 48)
    assert after.loss < before.loss / 3 and after.accuracy > 0.75 > before.accuracy


def test_half_of_the_jobs_are_elastic_and_both_trainings_are_among_them() -> None:
    these = jobs(7.0, "training", 0)
    assert len({job.name for job in these}) == 12 and sum(job.elastic for job in these) == 6
    assert {(job.kind, job.elastic) for job in these} == {
        (model, way) for model in models.MODELS for way in (True, False)
    }
