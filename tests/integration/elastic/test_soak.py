"""Random events, some dozens of them: see `soak`. `make soak` lets many more happen."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from fake_gpu_device import FakeGpu
from worlds import Nursery

sys.path.insert(0, str(Path(__file__).parent))

from soak import Soak, steps_taken

EVENTS = 34
FEW_EVENTS = 15
# Each takes longer: of a worker whose NCCL hangs in an abort, 10 s.
GPU_EVENTS = 10


@pytest.mark.parametrize("seed", [1, 2])
def test_training_survives_random_events(seed: int, nursery: Nursery) -> None:
    soak = Soak(nursery, seed)
    try:
        assert soak.wrongs(soak.run(EVENTS)) == []
    finally:
        soak.close()


def test_training_on_several_hosts_survives_random_events(nursery: Nursery) -> None:
    soak = Soak(nursery, 4, hosts=3)
    try:
        assert soak.wrongs(soak.run(FEW_EVENTS)) == []
    finally:
        soak.close()


def test_training_on_gpus_survives_random_events_and_faults(fake_gpu: FakeGpu, nursery: Nursery) -> None:
    soak = Soak(nursery, 3, gpu=fake_gpu)
    try:
        assert soak.wrongs(soak.run(GPU_EVENTS)) == []
    finally:
        soak.close()


def test_memory_of_worker_does_not_grow_with_worlds(nursery: Nursery) -> None:
    soak = Soak(nursery, 0)
    try:
        ended = soak.grow_and_shrink(10)
        assert soak.wrongs(ended) == []
        assert len(ended[0].holdings) > 10
    finally:
        soak.close()


def book(*steps: tuple[int, str]) -> str:
    return "".join(json.dumps(step) + "\n" for step in steps)


def test_step_that_only_killed_workers_wrote_down_is_not_missing() -> None:
    # Worker 1 came after step 1, and got it with the state of worker 0, which was killed in step 2.
    books = {1: book((2, "c"), (3, "d")), 0: book((0, "a"), (1, "b"))}
    assert steps_taken(books, [1]) == ({0: ["a"], 1: ["b"], 2: ["c"], 3: ["d"]}, [])


def test_last_step_of_killed_worker_does_not_count_if_others_took_it_otherwise() -> None:
    books = {1: book((0, "a"), (1, "again"), (2, "c")), 0: book((0, "a"), (1, "alone"))}
    assert steps_taken(books, [1]) == ({0: ["a"], 1: ["again"], 2: ["c"]}, [])


def test_last_step_of_killed_worker_does_not_lengthen_the_training() -> None:
    books = {1: book((0, "a"), (1, "b")), 0: book((0, "a"), (1, "b"), (2, "alone"))}
    assert steps_taken(books, [1]) == ({0: ["a"], 1: ["b"]}, [])


def test_half_a_line_of_killed_worker_is_ignored() -> None:
    books = {1: book((0, "a"), (1, "b")), 0: book((0, "a")) + "[1, "}
    assert steps_taken(books, [1]) == ({0: ["a"], 1: ["b"]}, [])


def test_step_that_nobody_wrote_down_stays_missing() -> None:
    books = {1: book((2, "c"), (3, "d")), 0: book((0, "a"))}
    assert 1 not in steps_taken(books, [1])[0]


def test_workers_that_see_a_step_otherwise_are_told() -> None:
    _, wrong = steps_taken({0: book((0, "a")), 1: book((0, "b"))}, [0, 1])
    assert "sees step 0 otherwise" in wrong[0]
