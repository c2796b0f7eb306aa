"""Worlds for tests of what is special to PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from worlds import Nursery, World


def _init() -> None:
    import farandole.torch as hvd

    hvd.init()


class Worlds:
    """Worlds by size and environment, made when first asked for."""

    def __init__(self) -> None:
        self._nursery = Nursery()
        self._worlds: dict[Any, World] = {}

    def run(self, size: int, body: Callable[..., Any], *arguments: Any, **environment: str) -> list[Any]:
        """Run a function on all ranks of a world of this size."""
        key = (size, *sorted(environment.items()))
        world = self._worlds.get(key)
        if world is None or world.broken:
            if world is not None:
                world.close()
            world = self._worlds[key] = World(self._nursery, size, environment)
            world.run(_init)
        return world.run(body, *arguments)

    def close(self) -> None:
        """End all of them."""
        for world in self._worlds.values():
            world.close()
        self._nursery.close()


@pytest.fixture(scope="session")
def worlds() -> Iterator[Worlds]:
    worlds = Worlds()
    yield worlds
    worlds.close()
