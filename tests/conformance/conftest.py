"""One world for each (size, transport), which all tests of the suite use one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from frontends import FRONT_ENDS
from worlds import Nursery, World

WORLDS = [(1, "shm")] + [(size, transport) for size in (2, 3, 4) for transport in ("shm", "tcp")]


class Conformance:
    """A world that is initialized, seen through one front end."""

    def __init__(self, world: World, front: str) -> None:
        self.world = world
        self.size = world.size
        self._front = front

    def run(self, body: Any, *arguments: Any) -> list[Any]:
        """Run `body(front, *arguments)` on all ranks."""
        return self.world.run(_call, body, self._front, arguments)


def _call(body: Any, front: str, arguments: tuple[Any, ...]) -> Any:
    return body(FRONT_ENDS[front], *arguments)


def _init(front: Any) -> None:
    front.hvd.init()


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(scope="session", params=list(FRONT_ENDS))
def front(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session", params=WORLDS, ids=lambda world: f"{world[0]}-{world[1]}")
def world(request: pytest.FixtureRequest, nursery: Nursery, front: str) -> Iterator[Conformance]:
    size, transport = request.param
    world = World(nursery, size, {"FARANDOLE_TRANSPORT": transport})
    conformance = Conformance(world, front)
    conformance.run(_init)
    yield conformance
    world.close()
