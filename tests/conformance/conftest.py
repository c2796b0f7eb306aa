"""One world for each (size, transport), which all tests of the suite use one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from frontends import FRONT_ENDS
from worlds import Nursery, World

WORLDS = [(1, "shm")] + [(size, transport) for size in (2, 3, 4) for transport in ("shm", "tcp")]


class Conformance:
    """A world that is initialized, seen through one front end. A test that fails does not spoil the next ones."""

    def __init__(self, make: Callable[[], World], front: str) -> None:
        self._make = make
        self._front = front
        self._world = self._open()
        self.size = self._world.size

    def run(self, body: Any, *arguments: Any) -> list[Any]:
        """Run `body(front, *arguments)` on all ranks."""
        if self._world.broken:
            self._world.close()
            self._world = self._open()
        return self._world.run(_call, body, self._front, arguments)

    def close(self) -> None:
        """End the world."""
        self._world.close()

    def _open(self) -> World:
        world = self._make()
        try:
            world.run(_call, _init, self._front, ())
        except BaseException:
            world.close()
            raise
        return world


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
    conformance = Conformance(lambda: World(nursery, size, {"FARANDOLE_TRANSPORT": transport}), front)
    yield conformance
    conformance.close()
