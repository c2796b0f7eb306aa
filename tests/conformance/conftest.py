"""One world for each (runtime, size, transport), which all tests of the suite use one after the other.

The first front end runs everything. What is below the front ends is the same for the next ones: they run in fewer
worlds, and leave out tests that are marked `once`. Front ends of one runtime share the worlds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fake_gpu_device import FakeGpu
from frontends import FIRST, FRONT_ENDS
from frontends.torch import OnFakeGpu
from mpi_seats import Seats
from nurseries import Nurseries
from worlds import Nursery, World


class Place(NamedTuple):
    """A world that a front end is tested in.

    Attributes:
        transport: a transport; "tree" is TCP among hosts of one worker each, which agree over a tree; "mpi" is the MPI
            backend.
    """

    runtime: str
    size: int
    transport: str


class SharedWorld:
    """A world that is initialized. A test that fails does not spoil the next ones."""

    def __init__(self, make: Callable[[], World], front: str) -> None:
        self._make = make
        self._front = front
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
            world.run(_init, self._front)
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


def _init(front: str) -> None:
    from farandole.worker.core import basics

    FRONT_ENDS[front].prepare()
    basics.init()


def _places() -> list[tuple[str, Place]]:
    """Return pairs of a front end and a world to test it in, worlds one after the other."""
    pairs = [
        (name, Place(front.runtime, size, transport))
        for name, front in FRONT_ENDS.items()
        for size, transport in front.worlds
    ]
    places = list(dict.fromkeys(place for _, place in pairs))
    return sorted(pairs, key=lambda pair: places.index(pair[1]))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test its front ends and, if it shares a world, the worlds."""
    if "shared_world" in metafunc.fixturenames:
        pairs = _places()
        ids = [f"{place.size}-{place.transport}-{name}" for name, place in pairs]
        metafunc.parametrize(("front", "shared_world"), pairs, ids=ids, indirect=True, scope="session")
    elif "front" in metafunc.fixturenames:
        fronts = [name for name, front in FRONT_ENDS.items() if front.has_other_worlds]
        metafunc.parametrize("front", fronts, indirect=True, scope="session")


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
    place = parameters.get("shared_world")
    if place is not None and place.transport == "mpi" and front.name != FIRST:
        # What MPI does with each type, the first front end has shown.
        if parameters.get("dtype", front.dtypes[0]) != front.dtypes[0]:
            return False
    once = item.get_closest_marker("once") is not None
    return front.name == FIRST or not (once or parameters.get("transport") == "tcp")


@pytest.fixture(scope="session")
def front(request: pytest.FixtureRequest) -> str:
    """Return the name of the front end under test."""
    name: str = getattr(request, "param", FIRST)
    return name


@pytest.fixture
def nursery(nurseries: Nurseries, front: str) -> Nursery:
    """Return what forks workers for the front end."""
    return nurseries[FRONT_ENDS[front].runtime]


@pytest.fixture(scope="session")
def shared_world(
    request: pytest.FixtureRequest, nurseries: Nurseries, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SharedWorld]:
    """Return a world of the front end's runtime."""
    runtime, size, transport = request.param
    nursery = nurseries[runtime]
    # The first one of the runtime: all of them are ready when it is.
    name, front = next((name, front) for name, front in FRONT_ENDS.items() if front.runtime == runtime)
    variables: dict[str, str] = {}
    of_rank = _nothing_more
    if isinstance(front, OnFakeGpu):
        fake_gpu: FakeGpu = request.getfixturevalue("fake_gpu")
        variables = {**fake_gpu.environment(devices=size), "FAKE_GPU_DELAY_US": "300", "FARANDOLE_GPU": front.mode}
        of_rank = _own_gpu
    if transport == "mpi":
        shared = SharedWorld(lambda: _mpi_world(nursery, size, tmp_path_factory.mktemp("mpi")), name)
    else:
        variables["FARANDOLE_TRANSPORT"] = transport
        if transport == "tree":
            # As deep as there are workers: each has one below it.
            variables |= {"FARANDOLE_TRANSPORT": "tcp", "FARANDOLE_AGREEMENT_FANOUT": "1"}
            of_rank = _own_host
        shared = SharedWorld(lambda: World(nursery, size, variables, of_rank=of_rank), name)
    yield shared
    shared.close()


def _nothing_more(rank: int) -> dict[str, str]:
    return {}


def _own_host(rank: int) -> dict[str, str]:
    return {"FARANDOLE_HOST_KEY": f"host{rank}"}


def _own_gpu(rank: int) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": str(rank)}


def _mpi_world(nursery: Nursery, size: int, directory: Path) -> World:
    return World(
        nursery,
        size,
        {"FARANDOLE_BACKEND": "mpi"},
        of_rank=lambda rank: {"FARANDOLE_HOST_KEY": f"host{rank * 2 // size}"},
        seats=Seats(size, directory),
    )


@pytest.fixture
def world(shared_world: SharedWorld, front: str) -> Conformance:
    return Conformance(shared_world, front)
