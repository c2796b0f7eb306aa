"""Worlds that are not initialized: what looks on begins with init()."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from worlds import Nursery, World


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def open_world(nursery: Nursery) -> Iterator[Callable[..., World]]:
    """Return a function that makes a world of some size with some environment."""
    worlds: list[World] = []

    def make(size: int, **environment: str) -> World:
        worlds.append(World(nursery, size, environment))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()
