"""Every interleaving of small jobs, and long random ways of larger ones; see `model`.

FARANDOLE_EXPLORE=1 goes through the larger ones as well, which takes about an hour.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import model

from farandole.roster.elastic import Limits

THOROUGH = os.environ.get("FARANDOLE_EXPLORE") == "1"

# workers, faults, least, most, kinds of faults, whether messages arrive at once
QUICK = [
    (2, 1, 1, 2, model.KINDS, False),
    (2, 1, 2, 2, model.KINDS, False),
    (2, 2, 1, 3, ("kill", "stop", "newcomer"), False),
    (2, 3, 1, 2, ("kill", "stop", "continue", "cut", "drain"), True),
    (3, 1, 1, 4, model.KINDS, True),
    (3, 2, 2, 3, ("kill", "stop"), True),
    (3, 2, 2, 3, ("kill", "fail"), True),
    (2, 2, 1, 3, ("exit", "newcomer"), False),
    (3, 2, 2, 3, ("exit", "kill"), True),
    (2, 3, 1, 2, ("promise", "drain", "kill"), True),
    (1, 3, 1, 3, ("stop", "evict", "newcomer"), True),
]
LARGE = [
    (2, 2, 1, 2, model.KINDS, False),
    (2, 3, 1, 4, model.KINDS, True),
    (3, 1, 1, 3, model.KINDS, False),
    (3, 2, 1, 4, model.KINDS, True),
    (4, 1, 1, 4, model.KINDS, True),
    (4, 3, 2, 4, ("kill", "stop", "continue"), True),
]


@pytest.fixture(autouse=True)
def no_memory_of_other_jobs() -> None:
    model.forget_decisions()


def explore(workers: int, faults: int, least: int, most: int, kinds: tuple[str, ...], prompt: bool) -> None:
    explorer = model.Explorer(model.beginning(workers, Limits(least, most), faults), kinds, prompt=prompt)
    explorer.run()
    print(f"{explorer.systems} systems, {explorer.transitions} transitions, {explorer.rests} at rest")
    assert explorer.rests


@pytest.mark.parametrize(("workers", "faults", "least", "most", "kinds", "prompt"), QUICK)
def test_whatever_happens_to_a_small_job_it_goes_on_or_ends_with_a_reason(
    workers: int, faults: int, least: int, most: int, kinds: tuple[str, ...], prompt: bool
) -> None:
    explore(workers, faults, least, most, kinds, prompt)


@pytest.mark.parametrize("kinds", [("kill", "stop"), ("fail", "stop"), ("kill", "continue", "evict"), ("exit",)])
def test_whatever_happens_to_four_workers_that_train_they_go_on_or_end_with_a_reason(kinds: tuple[str, ...]) -> None:
    explorer = model.Explorer(model.training(4, Limits(2, 4), 1), kinds, prompt=True)
    explorer.run()
    assert explorer.rests


@pytest.mark.skipif(not THOROUGH, reason="takes about an hour; set FARANDOLE_EXPLORE=1")
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("workers", "faults", "least", "most", "kinds", "prompt"), LARGE)
def test_whatever_happens_to_a_larger_job_it_goes_on_or_ends_with_a_reason(
    workers: int, faults: int, least: int, most: int, kinds: tuple[str, ...], prompt: bool
) -> None:
    explore(workers, faults, least, most, kinds, prompt)


@pytest.mark.parametrize("seed", range(2000 if THOROUGH else 20))
def test_long_jobs_survive_whatever_happens(seed: int) -> None:
    faults = 300 if THOROUGH else 60
    model.simulate(seed, 4 + seed % 5, faults, Limits(1 + seed % 3, 3 + seed % 6))
