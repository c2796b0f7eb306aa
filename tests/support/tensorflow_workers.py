"""Worker processes that have TensorFlow or Keras: all tests share what forks them, as an import takes seconds."""

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


@pytest.fixture(scope="session", params=["tensorflow", "torch", "jax"])
def keras_nursery(request: pytest.FixtureRequest) -> Iterator[Nursery]:
    """Return what forks workers that have imported Keras, with each of its backends."""
    backend = request.param
    for needed in ("keras", backend):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    nursery = Nursery("keras", {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"})
    first = nursery.fork({})
    first.send(int, ())
    first.receive(100)
    first.close()
    yield nursery
    nursery.close()
