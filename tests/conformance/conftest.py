"""One world for each (size, transport), which all tests of the suite use one after the other, for all front ends.

The first front end runs everything. What is below the front ends is the same for the next ones: they run in fewer
worlds, and leave out the tests that make a world of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from frontends import FRONT_ENDS
from worlds import Nursery, World

WORLDS = [(1, "shm")] + [(size, transport) for size in (2, 3, 4) for transport in ("shm", "tcp")]
FIRST, *FURTHER = FRONT_ENDS
WORLDS_OF_FURTHER = [(1, "shm"), (2, "tcp"), (3, "shm")]


class SharedWorld:
    """A world that is initialized. A test that fails does not spoil the next ones."""

    def __init__(self, make: Callable[[], World]) -> None:
        self._make = make
        self._world = self._open()
        self.size = self._world.size

    def run(self, body: Any, front: str, *arguments: Any) -> list[Any]:
        """Run `body(front, *arguments)` on all ranks."""
        if self._world.broken:
            self._world.close()
            self._world = self._open()
        return self._world.run(_call, body, front, arguments)

    def close(self) -> None:
        """End the world."""
        self._world.close()

    def _open(self) -> World:
        world = self._make()
        try:
            world.run(_call, _init, FIRST, ())
        except BaseException:
            world.close()
            raise
        return world


class Conformance:
    """A world, seen through one front end."""

    def __init__(self, world: SharedWorld, front: str) -> None:
        self._world = world
        self._front = front
        self.size = world.size

    def run(self, body: Any, *arguments: Any) -> list[Any]:
        """Run `body(front, *arguments)` on all ranks."""
        return self._world.run(body, self._front, *arguments)


def _call(body: Any, front: str, arguments: tuple[Any, ...]) -> Any:
    return body(FRONT_ENDS[front], *arguments)


def _init(front: Any) -> None:
    front.hvd.init()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what a front end does not have, and what the first one has shown for all."""
    left_out = [item for item in items if isinstance(item, pytest.Function) and not _is_for(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _is_for(item: pytest.Function) -> bool:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    front = FRONT_ENDS.get(parameters.get("front", ""))
    if front is None:
        return True
    needed = {need for marker in item.iter_markers("needs") for need in marker.args}
    if not needed <= front.has or parameters.get("dtype", front.dtypes[0]) not in front.dtypes:
        return False
    once = item.get_closest_marker("once") is not None
    return front.name == FIRST or (not once and parameters.get("shared_world") in WORLDS_OF_FURTHER)


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(params=list(FRONT_ENDS))
def front(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session", params=WORLDS, ids=lambda world: f"{world[0]}-{world[1]}")
def shared_world(request: pytest.FixtureRequest, nursery: Nursery) -> Iterator[SharedWorld]:
    size, transport = request.param
    shared = SharedWorld(lambda: World(nursery, size, {"FARANDOLE_TRANSPORT": transport}))
    yield shared
    shared.close()


@pytest.fixture
def world(shared_world: SharedWorld, front: str) -> Conformance:
    return Conformance(shared_world, front)
