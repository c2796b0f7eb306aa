"""Worlds of workers with a fake GPU each, for tests of gradients on GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fake_gpu_device import FakeGpu
from nurseries import Nurseries
from worlds import World


def _init() -> None:
    import farandole.torch as hvd

    FakeGpu.of_environment().load_for_farandole()
    hvd.init()


class Worlds:
    """Worlds on a fake GPU for each rank, by their sizes."""

    def __init__(self, nurseries: Nurseries, fake_gpu: FakeGpu, **variables: str) -> None:
        self._nursery = nurseries["torch"]
        self._variables = {
            **fake_gpu.environment(devices=2),
            "FAKE_GPU_DELAY_US": "300",
            # So that a missing wait shows on a machine of any speed.
            "FAKE_GPU_LAZY_MS": "2000",
            # The request of the check of parameters would be counted in a first step.
            "FARANDOLE_CHECK_PARAMETERS": "0",
            **variables,
        }
        self._worlds: dict[int, World] = {}

    def run(self, size: int, body: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Run a function on all ranks of a world."""
        world = self._worlds.get(size)
        if world is None or world.broken:
            if world is not None:
                world.close()
            world = self._worlds[size] = World(self._nursery, size, self._variables)
            world.run(_init)
        return world.run(body, *arguments)

    def close(self) -> None:
        """End all worlds."""
        for world in self._worlds.values():
            world.close()


@pytest.fixture(scope="module")
def worlds(nurseries: Nurseries, fake_gpu: FakeGpu) -> Iterator[Worlds]:
    worlds = Worlds(nurseries, fake_gpu)
    yield worlds
    worlds.close()


@pytest.fixture(params=["nccl", "staged"])
def own_worlds(request: pytest.FixtureRequest, nurseries: Nurseries, fake_gpu: FakeGpu) -> Iterator[Worlds]:
    """Return worlds that the test breaks."""
    worlds = Worlds(nurseries, fake_gpu, FARANDOLE_GPU=request.param)
    yield worlds
    worlds.close()


@pytest.fixture
def worlds_with(nurseries: Nurseries, fake_gpu: FakeGpu) -> Iterator[Callable[..., Worlds]]:
    """Return a function that makes worlds whose workers have these variables, too."""
    made: list[Worlds] = []

    def make(**variables: str) -> Worlds:
        made.append(Worlds(nurseries, fake_gpu, **variables))
        return made[-1]

    yield make
    for worlds in made:
        worlds.close()
