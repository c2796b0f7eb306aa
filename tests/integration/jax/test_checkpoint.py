"""Checkpoints of JAX's arrays: whole and exact again, in the same structure, or an error that says what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kinds_of_state import check_same, plain_kinds
from worlds import Nursery, Worker, World


@pytest.fixture
def worker(jax_nursery: Nursery) -> Any:
    """Return a process that is in no world."""
    worker = jax_nursery.fork({})
    yield worker
    worker.close()


def test_arrays_in_any_structure_come_back(worker: Worker, tmp_path: Path) -> None:
    def run(directory: str) -> list[str]:
        import jax
        import jax.numpy as jnp
        import numpy as np
        import optax

        import farandole.jax as hvd

        def make(seed: int) -> dict[str, Any]:
            weights = jax.random.normal(jax.random.key(seed), (2000, 1100), jnp.float32)  # Is split among ranks.
            params = {"w": weights, "b": [jnp.full(3, seed, jnp.bfloat16), jnp.float32(seed)], "none": None}
            optimizer = optax.adam(0.1)
            holder = hvd.elastic.TrainState(params=params, optimizer=optimizer.init(params), flags=jnp.ones(3, bool))
            others = {
                "rate": 0.1,
                "step": 2**40,
                "key": jax.random.key(seed),
                "words": ["text"],
                "half": np.float16(seed),
            }
            tree = (np.arange(seed), np.zeros((0, 2)))
            return {"state": holder, "tree": tree, "epoch": seed, "more": b"bytes", "others": others}

        said: list[str] = []

        def say(level: str, line: str) -> None:
            said.append(line)

        saved = make(3)
        parts = [hvd.elastic.Checkpoint(directory, run="one", say=say) for _ in range(2)]
        for rank, part in enumerate(parts):
            assert part.save(saved, 7, rank=rank, size=2)
        assert all(part.wait(60) for part in parts)
        into = {**make(3), "epoch": 0, "more": None}
        vars(into["state"])["params"]["w"] = jnp.zeros((2000, 1100), jnp.float32)
        assert hvd.elastic.Checkpoint(directory, say=say).load(into) == 7
        mine, theirs = vars(into["state"]), vars(saved["state"])
        assert jax.tree.structure(mine) == jax.tree.structure(theirs)
        leaves = jax.tree.leaves((mine, into["tree"])), jax.tree.leaves((theirs, saved["tree"]))
        for one, other in zip(*leaves, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)
        assert (into["epoch"], into["more"]) == (3, b"bytes")
        # Each leaf is what it was: numbers of Python do not become arrays.
        key = into["others"].pop("key")
        assert (jax.random.key_data(key) == jax.random.key_data(saved["others"].pop("key"))).all()
        check_same(into["others"], jax.tree.map(lambda leaf: leaf, saved["others"]))  # JAX sorts the keys.

        def refused(function: Any) -> None:
            with pytest.raises(Exception) as error:
                function()
            said.append(f"{type(error.value).__name__}: {error.value}")

        last = hvd.elastic.Checkpoint(directory)
        refused(lambda: last.load({"tree": (np.arange(4), np.zeros((0, 2)))}))
        refused(lambda: last.load({"unknown": 1}))
        refused(lambda: last.save({"words": [object()]}, 8, rank=0, size=1))
        refused(lambda: hvd.elastic.Checkpoint(directory, format="dcp"))
        return said

    worker.send(run, (str(tmp_path),))
    said = worker.receive()
    expected = (
        "training resumes at step 7",
        "CheckpointError: tree has the arrays [0] int64[4], [1] float64[0, 2] here",
        "CheckpointError",
        "is a builtins.object, which a checkpoint cannot hold",
        "'dcp' is not a format for arrays",
    )
    for line, words in zip(said[-5:], expected, strict=True):
        assert words in line, line


def test_newcomers_get_each_leaf_as_it_is(jax_nursery: Nursery) -> None:
    def begin() -> None:
        import farandole.jax as hvd

        hvd.init()

    def run() -> None:
        import jax
        import jax.numpy as jnp
        import numpy as np

        import farandole.jax as hvd
        from farandole.jax.elastic.trained import Training

        def make(seed: int) -> dict[str, Any]:
            more = plain_kinds() if seed == 0 else dict.fromkeys(plain_kinds(), 1)
            arrays = {"w": jnp.full(3, seed, jnp.bfloat16), "n": np.full(2, seed, np.uint32), "empty": np.zeros((0, 2))}
            return {"arrays": arrays, "step": seed + 2**40, "rate": 0.1 + seed, "leaf": Leaf(more)}

        class Leaf:  # Not a node of JAX's trees, which have to have the same structure everywhere.
            def __init__(self, more: Any) -> None:
                self.more = more

        state = hvd.elastic.TrainState(**make(hvd.rank()), key=jax.random.key(hvd.rank()))
        Training({"state": state}, None).transfer([0], [1], may_stream=False)
        found = dict(vars(state))
        assert (jax.random.key_data(found.pop("key")) == jax.random.key_data(jax.random.key(0))).all()
        check_same(found.pop("leaf").more, plain_kinds())
        wanted = {name: value for name, value in make(0).items() if name != "leaf"}
        # JAX sorts keys.
        check_same(*(jax.tree.map(lambda leaf: leaf, each) for each in (found, wanted)))

    with World(jax_nursery, 2) as world:
        world.run(begin)
        world.run(run)
