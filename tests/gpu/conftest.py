"""Two workers that share the machine's CUDA device. Without one, every test here is skipped with the reason."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from worlds import Nursery, World


def _init() -> None:
    import farandole.torch as hvd

    hvd.init()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    if torch.cuda.is_available():
        return
    for item in items:
        if "tests/gpu/" in item.path.as_posix():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device; PyTorch finds none"))


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(scope="module")
def world(nursery: Nursery) -> Iterator[World]:
    world = World(nursery, 2)
    world.run(_init)
    yield world
    world.close()
