"""Checkpoints of Orbax's: one rank writes and reads them, and what goes wrong there is said on all."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from worlds import Nursery, World


@pytest.fixture(scope="module")
def world(jax_nursery: Nursery) -> Any:
    world = World(jax_nursery, 2)
    yield world
    world.close()


def arrays(seed: float) -> Any:
    import jax.numpy as jnp

    return {"w": jnp.full((3, 2), seed), "more": [jnp.full(4, seed, jnp.bfloat16), jnp.int32(seed)]}


@pytest.mark.skipif(find_spec("orbax") is None, reason="Orbax (orbax-checkpoint) is not installed")
def test_all_get_what_the_first_rank_has_saved(world: World, tmp_path: Path) -> None:
    def run(folder: str) -> tuple[Any, list[str]]:
        import jax
        import numpy as np

        import farandole.jax as hvd
        from farandole.errors import FarandoleError

        hvd.init()
        # Only the first rank's folder is there: the others need no shared file system.
        path = f"{folder}/rank {hvd.rank()}/checkpoint"
        said = []
        try:
            hvd.orbax.save(path, arrays(3.0 + hvd.rank()))
            tree = hvd.orbax.restore(path, arrays(0.0))
            wrong = [
                lambda: hvd.orbax.save(path, arrays(1.0)),
                lambda: hvd.orbax.restore(f"{path}.none", arrays(0.0)),
                lambda: hvd.orbax.restore(path, {"another": arrays(0.0)["w"]}),
            ]
            for call in wrong:
                try:
                    call()
                except FarandoleError as error:
                    said.append(str(error))
            return jax.tree.map(lambda array: np.asarray(array, np.float32).tolist(), tree), said
        finally:
            hvd.shutdown()

    (tmp_path / "rank 0").mkdir()
    first, second = world.run(run, str(tmp_path))
    assert first == second
    assert first[0] == {"w": [[3.0, 3.0]] * 3, "more": [[3.0] * 4, 3.0]}
    assert len(first[1]) == 3
    assert all("rank 0 says" in why for why in first[1])
    assert not (tmp_path / "rank 1").exists()


@pytest.mark.skipif(find_spec("orbax") is not None, reason="Orbax is installed")
def test_without_orbax_all_are_told_so(world: World, tmp_path: Path) -> None:
    def run(path: str) -> str:
        import farandole.jax as hvd
        from farandole.errors import FarandoleError

        hvd.init()
        try:
            hvd.orbax.save(path, arrays(1.0))
        except FarandoleError as error:
            return str(error)
        finally:
            hvd.shutdown()
        return "it was saved"

    for why in world.run(run, str(tmp_path / "checkpoint")):
        assert "rank 0 says: Orbax is not installed here. Run: pip install orbax-checkpoint" in why
