"""Random events, a hundred of them: see `soak`. `make soak` lets many more happen."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from worlds import Nursery

sys.path.insert(0, str(Path(__file__).parent))

from soak import Soak

EVENTS = 34


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_training_survives_random_events(seed: int, nursery: Nursery) -> None:
    soak = Soak(nursery, seed)
    try:
        assert soak.wrongs(soak.run(EVENTS)) == []
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
