"""Worlds whose workers have imported MXNet; where it is not installed, the tests are skipped and say so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from nurseries import Nurseries
from worlds import Nursery, World


@pytest.fixture(scope="session")
def mxnet_nursery(nurseries: Nurseries) -> Nursery:
    """Return what forks workers that have imported MXNet."""
    return nurseries["mxnet"]


@pytest.fixture(scope="module")
def world(mxnet_nursery: Nursery) -> Iterator[World]:
    """Return a world of two that the tests of a module use one after the other."""
    world = World(mxnet_nursery, 2)
    world.run(begin)
    yield world
    world.close()


def begin() -> None:
    import farandole.mxnet as hvd

    hvd.init()
