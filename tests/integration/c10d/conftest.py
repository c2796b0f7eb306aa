"""Worlds whose workers have made the default process group of torch.distributed with our backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from worlds import Nursery, World


def _init(store: str, size: int, timeout: float) -> None:
    import os
    from datetime import timedelta

    import torch.distributed as dist

    import farandole.torch.distributed  # noqa: F401  (registers the backend)

    rank = int(os.environ["FARANDOLE_RANK"])
    limit = timedelta(seconds=timeout)
    dist.init_process_group("farandole", init_method=f"file://{store}", rank=rank, world_size=size, timeout=limit)


class Groups:
    """Worlds by size, made when first asked for, and again after one has broken."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._nursery = Nursery()
        self._worlds: dict[int, World] = {}
        self._made = 0

    def run(self, size: int, body: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Run a function on all ranks of the world of this size."""
        world = self._worlds.get(size)
        if world is None or world.broken:
            if world is not None:
                world.close()
            world = self._worlds[size] = self.fresh(size)
        return world.run(body, *arguments)

    def fresh(self, size: int, timeout: float = 60.0) -> World:
        """Return a separate world, for a test that breaks it. The caller closes it."""
        self._made += 1
        world = World(self._nursery, size)
        world.run(_init, str(self._folder / f"store{self._made}"), size, timeout)
        return world

    def close(self) -> None:
        """End all of them."""
        for world in self._worlds.values():
            world.close()
        self._nursery.close()


@pytest.fixture(scope="session")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Groups]:
    groups = Groups(tmp_path_factory.mktemp("stores"))
    yield groups
    groups.close()
