"""The loop of steps, on thousands of ways that a job may take; see `played_jobs`.

The oracle: each sample is used once in an epoch, in one step that all survivors agree on; each step's result is the
mean over its samples; all who end hold the same state, and calls of the body meet only their like.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection
from typing import Any

import played_jobs
import pytest
from played_jobs import Job, Killed
from played_trainings import EPOCHS, Book, Ended, Kind, training

from farandole.control.roster.elastic import Limits
from farandole.errors import EvictedError, InvalidRequestError, StartError
from farandole.worker.core.retry import Gradients
from farandole.worker.elastic import step_loop, world_changes
from farandole.worker.elastic.recovery import Ballot, Recovery

SEEDS = 10 if os.environ.get("FARANDOLE_EXPLORE") == "brief" else 50


@pytest.fixture(autouse=True)
def on_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_changes, "basics", played_jobs.basics)
    monkeypatch.setattr(step_loop, "basics", played_jobs.basics)


def play(kind: Kind, seed: int) -> tuple[Job, dict[int, Book]]:
    books: dict[int, Book] = {}
    job = Job(seed, Limits(1, kind.workers + 2), training(kind, books), elastic_keep_gradients=kind.keeps_gradients)
    left = [kind.faults]

    def chances(job: Job) -> None:
        forming = [number for number in job.living() if kind.while_forming and job.workers[number].forms()]
        likely = 0.3 if forming else 0.02
        if not left[0] or not (job.state_held or kind.early) or job.random.random() > likely:
            return
        left[0] -= 1
        change = job.random.choice(kind.changes)
        well = [number for number in job.living() if number not in job.leaving]
        holders = [number for number in well if number in job.state.holders]
        if not job.state_held:
            holders = well[-1:]
        spared = job.random.choice(holders) if holders else None
        others = [number for number in well if number != spared]
        others = [number for number in others if number in forming] or others
        if change == "add":
            job.add()
        elif change == "fail":
            job.fail(job.random.choice(well))  # Nothing is lost with it.
        elif others and spared is not None:
            getattr(job, change)(job.random.choice(others))

    for _ in range(kind.workers):
        job.add()
    job.play(chances)
    return job, books


def check(kind: Kind, job: Job, books: dict[int, Book]) -> None:
    ended = {number: result for number, result in job.results.items() if isinstance(result, Ended)}
    for number, result in job.results.items():
        words = "for the first time" if kind.calls_from else "joined for loop 1" if kind.loops > 1 else "nothing"
        has_lost_world = isinstance(result, InvalidRequestError) and words in str(result)
        has_failed_twice = isinstance(result, StartError) and "does not continue" in str(result) and kind.faults > 1
        expected = isinstance(result, (Ended, Killed, SystemExit, EvictedError))
        if not (has_lost_world or has_failed_twice or expected):
            raise AssertionError(f"worker {number} ended with {result!r}") from result
    assert ended, "nobody has come to the end"
    if set(kind.changes) == {"fail"}:
        assert len(ended) == kind.workers, "an error that is nobody's fault has cost a worker"
    if not {"evict", "suspect"}.intersection(kind.changes):
        # A worker that is not told of its own loss, although it lives, may find out only so.
        assert job.timeouts == 0, "somebody was not told that a world would not form"
    assert len({repr(each.state) for each in ended.values()}) == 1, ended
    agreed: dict[tuple[int, int], Any] = {}
    for number in ended:
        for step, entry in books[number].steps.items():
            assert agreed.setdefault(step, entry) == entry, f"worker {number} sees step {step} in another way"
    for number, book in books.items():
        # The last step of a worker that was lost may count for it alone.
        sure = sorted(book.steps)[: None if number in ended else -1]
        for step in sure:
            entry = book.steps[step]
            assert agreed.setdefault(step, entry) == entry, f"worker {number} saw step {step} in another way"
    for loop in range(kind.loops):
        lasts = {each.steps[loop] for each in ended.values()} - {0}
        assert len(lasts) == 1 or (not lasts and loop + 1 < kind.loops), ended
        if lasts:
            entries = {step: entry for (number, step), entry in _all_steps(books, ended).items() if number == loop}
            check_loop(kind, {step: entry for step, entry in entries.items() if step < max(lasts)}, max(lasts))


def check_loop(kind: Kind, known: dict[int, Any], last: int) -> None:
    assert sorted(known) == list(range(last)), sorted(known)
    for epoch in range(max(in_epoch for in_epoch, _, _ in known.values()) + 1):
        used = Counter(index for in_epoch, indices, _ in known.values() if in_epoch == epoch for index in indices)
        if kind.stops:
            assert used <= Counter(range(kind.samples)), f"epoch {epoch}: {used}"
        else:
            assert used == Counter(range(kind.samples)), f"epoch {epoch}: {used}"
    assert kind.stops or {in_epoch for in_epoch, _, _ in known.values()} == set(range(EPOCHS))


def _all_steps(books: dict[int, Book], ended: Collection[int]) -> dict[tuple[int, int], Any]:
    known: dict[tuple[int, int], Any] = {}
    for number in sorted(books, key=lambda number: number in ended):
        known |= books[number].steps
    return known


KINDS = {
    "plain": Kind(),
    "calls": Kind(workers=4, calls_before=True, calls_after=True, faults=3),
    "tails": Kind(workers=4, samples=11, batch=6, faults=2),
    "tails with calls": Kind(workers=4, samples=11, batch=6, calls_before=True, calls_after=True, faults=2),
    "fewer samples than workers": Kind(workers=5, samples=7, batch=3, faults=2),
    "fewer samples than workers, and calls": Kind(
        workers=5, samples=7, batch=3, faults=3, calls_before=True, calls_after=True, changes=("kill", "add")
    ),
    "two optimizers, and tails": Kind(workers=4, samples=11, batch=3, optimizers=2),
    "two optimizers": Kind(workers=3, optimizers=2, faults=2),
    "changed gradients": Kind(workers=4, changing=True, faults=3, calls_after=True, changes=("kill", "add")),
    "gives out again": Kind(workers=4, keeps_gradients=False, faults=3),
    "newcomers": Kind(workers=3, faults=4, changes=("kill", "add", "add")),
    "newcomers and calls": Kind(workers=3, faults=4, changes=("kill", "add"), calls_before=True, calls_after=True),
    "two loops": Kind(workers=3, loops=2, samples=11, faults=5, changes=("kill", "add", "add")),
    "two loops with a large state, and calls": Kind(
        workers=3, loops=2, samples=11, faults=6, parts=2, changes=("kill", "add", "drain"), calls_after=True
    ),
    "calls that begin later": Kind(
        workers=3, faults=6, changes=("kill", "add", "add"), calls_before=True, calls_after=True, calls_from=3
    ),
    "newcomers of a large state": Kind(workers=3, faults=5, parts=3, changes=("kill", "add", "add")),
    "newcomers of a large state, and drains": Kind(
        workers=3, samples=29, faults=6, parts=2, changes=("kill", "add", "drain"), stops=True
    ),
    "newcomers of a large state, and calls": Kind(
        workers=3, faults=5, parts=3, changes=("kill", "add", "add"), calls_before=True, calls_after=True
    ),
    "newcomers of a large state, and calls that begin later": Kind(
        workers=3, faults=6, parts=3, changes=("kill", "add", "add"), calls_before=True, calls_after=True, calls_from=3
    ),
    "newcomers of a large state, and tails": Kind(
        workers=3, samples=11, batch=6, faults=5, parts=2, changes=("kill", "add")
    ),
    "newcomers of a large state, while worlds are formed": Kind(
        workers=4,
        faults=6,
        parts=3,
        early=True,
        while_forming=True,
        changes=("kill", "add", "drain", "evict", "suspect"),
    ),
    "newcomers of a large state, changed gradients": Kind(
        workers=4, parts=3, changing=True, faults=4, changes=("kill", "add", "add")
    ),
    "drains": Kind(workers=4, faults=4, changes=("kill", "add", "drain")),
    "from the beginning": Kind(workers=4, faults=3, early=True, changes=("kill", "add")),
    "while worlds are formed": Kind(
        workers=4, faults=6, early=True, while_forming=True, changes=("kill", "kill", "add")
    ),
    "while worlds are formed, drained": Kind(
        workers=4, faults=6, while_forming=True, changes=("kill", "add", "drain"), calls_after=True
    ),
    "stopped": Kind(workers=4, faults=3, stops=True, calls_after=True, changes=("kill", "add", "drain")),
    "gives out again in changing worlds": Kind(
        workers=4, faults=4, keeps_gradients=False, changes=("kill", "add", "drain")
    ),
    "on devices": Kind(workers=4, on_device=True, faults=4, changes=("kill", "add"), calls_after=True),
    "on devices, newcomers of a large state": Kind(
        workers=3, on_device=True, samples=23, faults=6, parts=3, changes=("kill", "add", "add", "drain")
    ),
    "on devices, while worlds are formed": Kind(
        workers=4,
        on_device=True,
        faults=6,
        early=True,
        while_forming=True,
        changes=("kill", "add", "drain", "evict", "suspect"),
    ),
    "on devices, gives out again": Kind(
        workers=4, on_device=True, keeps_gradients=False, faults=4, changes=("kill", "add", "drain")
    ),
    "on devices, two loops and tails": Kind(
        workers=4, on_device=True, samples=11, loops=2, faults=5, changes=("kill", "add", "drain")
    ),
    "an engine that fails": Kind(workers=4, on_device=True, faults=1, changes=("fail",), calls_after=True),
    "engines that fail": Kind(
        workers=4, on_device=True, faults=6, changes=("fail", "fail", "kill", "add", "drain"), calls_before=True
    ),
    "engines that fail, newcomers of a large state": Kind(
        workers=3, on_device=True, samples=23, faults=6, parts=3, changes=("fail", "add", "add")
    ),
    "engines that fail, changed gradients": Kind(
        workers=3, on_device=True, samples=23, faults=6, parts=3, changing=True, changes=("fail", "add", "add")
    ),
    "all": Kind(
        workers=4, faults=5, changes=("kill", "add", "drain", "evict", "suspect"), calls_before=True, calls_after=True
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_whatever_way_a_job_takes_all_come_to_the_same_end(name: str) -> None:
    kind = KINDS[name]
    for seed in range(SEEDS):
        job, books = play(kind, seed)
        try:
            check(kind, job, books)
        except AssertionError as error:
            raise AssertionError("\n".join([f"seed {seed}: {error}", *job.story])) from error


def test_a_worker_that_forgets_a_result_which_came_after_the_loss_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reduction may be completed on a rank that knows already that its world has ended."""
    remember = Recovery.reduced

    def forget(self: Recovery, outcome: Ballot, gradients: Gradients) -> None:
        if self._session.engine.cause() is None:
            remember(self, outcome, gradients)

    monkeypatch.setattr(Recovery, "reduced", forget)
    kind = KINDS["an engine that fails"]
    with pytest.raises(AssertionError):
        for seed in range(SEEDS):
            check(kind, *play(kind, seed))
