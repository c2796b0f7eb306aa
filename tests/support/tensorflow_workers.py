"""Worker processes that have TensorFlow: all tests share what forks them, as its import takes seconds."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
from worlds import Nursery


@pytest.fixture(scope="session")
def tensorflow_nursery() -> Iterator[Nursery]:
    """Return what forks workers that have imported TensorFlow and have computed nothing."""
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    nursery = Nursery("tensorflow")
    first = nursery.fork({})
    first.send(int, ())
    first.receive(100)
    first.close()
    yield nursery
    nursery.close()
