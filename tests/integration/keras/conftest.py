"""A world of two processes with Keras."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from worlds import Nursery, World


@pytest.fixture(scope="module")
def world(keras_nursery: Nursery) -> Iterator[World]:
    """Return a world that the tests of this module use one after the other."""
    world = World(keras_nursery, 2)
    world.run(begin)
    yield world
    world.close()


def begin() -> None:
    import os

    import farandole.keras as hvd

    os.environ["FARANDOLE_CHECK_PARAMETERS"] = "0"  # Some tests count requests.
    hvd.init()
