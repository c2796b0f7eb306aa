"""JAX in worlds of real processes that lose workers: the loop of steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from elastic_worlds import ElasticJob
from jax_trainings import check, train
from worlds import Nursery, World


@pytest.fixture(scope="module")
def nursery(jax_nursery: Nursery) -> Nursery:
    """Return what forks workers that have JAX."""
    return jax_nursery


KINDS: dict[str, dict[str, Any]] = {
    "nobody dies": {},
    "in a compiled step": {"calls": True, "deaths": {0: (1, "gradients"), 2: (3, "gradients")}},
    "eager, before the step": {"compiled": False, "deaths": {1: (1, "begin")}},
    "few samples": {"batch": {"global_batch_size": 2}, "deaths": {1: (2, "gradients")}},
    "samples of each worker": {"batch": {"batch_size": 2}, "deaths": {2: (1, "gradients")}},
}


@pytest.mark.parametrize("name", KINDS)
def test_trainings_survive_workers(name: str, make_job: Callable[..., ElasticJob]) -> None:
    options = KINDS[name]
    job = make_job()
    workers = job.add(3)
    job.start(train, options)
    check(job.collect_survivors(workers, options.get("deaths", ())), options)


def test_newcomers_get_the_state_from_memory(make_job: Callable[..., ElasticJob]) -> None:
    options: dict[str, Any] = {"epochs": 3, "waits": {4: 3}, "deaths": {1: (1, "gradients")}}
    job = make_job()
    workers = job.add(3)
    job.start(train, options)
    job.workers[1].wait(60)
    workers += job.add(1)
    job.start(train, options, workers=workers[3:])
    results = job.collect_survivors(workers, [1])
    check(results, options)
    assert results[-1]["used"].keys() < results[0]["used"].keys()
    assert results[0]["size"] == 3


@pytest.mark.parametrize("deaths", [{}, {0: (5, "gradients")}])
def test_the_batch_adapts_and_follows_a_scheduler(make_job: Callable[..., ElasticJob], deaths: dict[int, Any]) -> None:
    options = {"epochs": 4, "adaptive": {"min": 4, "max": 11, "every": 2, "rate": "linear"}, "deaths": deaths}
    job = make_job()
    job.tell(job.service.schedule_batch, 6)
    workers = job.add(3)
    job.start(train, options)
    results = job.collect_survivors(workers, deaths)
    # The body's rate stays as it is, as the replay's does.
    check(results, options)
    assert len({result["adaptation"] for result in results}) == 1
    adaptation = results[0]["adaptation"]
    assert adaptation.batch == 6 and adaptation.measured > 3 and adaptation.noise.is_known
    assert results[0]["rate factor"] == pytest.approx(6 / 4)
    sizes = [len(used) for _, used in sorted(results[0]["used"].items())]
    assert sizes[:3] == [4, 4, 6]


def measure_and_reduce() -> tuple[float, float, float]:
    """Return what is measured of gradients that a test knows."""
    import numpy as np

    import farandole.jax as hvd
    from farandole.errors import InvalidRequestError
    from farandole.numpy.elastic.step_reduction import OnePass, Reductions
    from farandole.worker.core.dtype import Average, Sum
    from farandole.worker.core.group import global_process_set
    from farandole.worker.gradients.reduce_options import ReduceOptions

    hvd.init()
    reductions = Reductions()
    passes = OnePass(reductions)
    options = ReduceOptions(Average, 1.0, 1.0, global_process_set)
    gradients = [np.array([[3.0, 4.0]]) * (1 + hvd.rank()), np.array([2.0], np.float16)]
    reductions.reduce(["a", "b"], gradients, options)
    passes.begin(0, [8], measures=True)
    reductions.reduce(["a", "b"], gradients, options)
    try:
        reductions.reduce(["a", "b"], gradients, options._replace(op=Sum))
        raise AssertionError("a sum was measured as if it were an average")
    except InvalidRequestError:
        pass
    found = passes.squares()
    hvd.shutdown()
    return found


def test_the_squares_of_own_and_reduced_gradients_are_measured(nursery: Nursery) -> None:
    world = World(nursery, 2)
    try:
        first, second = world.run(measure_and_reduce)
    finally:
        world.close()
    assert first == (25.0 + 4.0, 25.0 + 4.0, 1.5**2 * 25.0 + 4.0)
    assert second == (100.0 + 4.0, 100.0 + 4.0, 1.5**2 * 25.0 + 4.0)


def resume(directory: str, stops_at: int | None) -> tuple[int, list[float]]:
    """Train, with a checkpoint of each step; return with which step this worker began, and the parameters."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    import farandole.jax as hvd

    hvd.init()
    optimizer = hvd.distributed(optax.sgd(0.1, momentum=0.9))
    params = jnp.zeros(2)
    state = hvd.elastic.TrainState(params=params, optimizer=optimizer.init(params))
    samples = np.random.default_rng(1).normal(size=(40, 2))
    loader = hvd.elastic.ElasticLoader(samples, global_batch_size=4)
    checkpoint = hvd.elastic.Checkpoint(directory, every_steps=1, wait_if_busy=True, run=f"until{stops_at}")
    loop = hvd.elastic.steps(loader, epochs=2, checkpoint=checkpoint, state=state)

    @jax.jit
    def step(params: Any, optimizer_state: Any, x: Any) -> Any:
        gradient = jax.grad(lambda params: ((x @ params - x.sum(1)) ** 2).mean())(params)
        updates, optimizer_state = optimizer.update(gradient, optimizer_state)
        return optax.apply_updates(params, updates), optimizer_state

    begun = None
    for x in loop:
        begun = loop.step if begun is None else begun
        state.params, state.optimizer = step(state.params, state.optimizer, x)
        if loop.step == stops_at:
            loop.stop()
    assert begun is not None
    hvd.shutdown()
    return begun, state.params.tolist()


def test_a_training_that_has_stopped_goes_on_from_its_checkpoint(nursery: Nursery, tmp_path: Any) -> None:
    """In a world of another size, to the parameters of one that was never stopped."""

    def train_in(size: int, directory: Any, stops_at: int | None) -> list[tuple[int, list[float]]]:
        world = World(nursery, size, {"FARANDOLE_RESUME": "auto"})
        try:
            return list(world.run(resume, str(directory), stops_at))
        finally:
            world.close()

    (_, wanted), _ = train_in(2, tmp_path / "whole", None)
    train_in(2, tmp_path / "parts", 12)
    ((begun, params),) = train_in(1, tmp_path / "parts", None)
    assert begun in (13, 14)  # All agree on where to stop, a step later.
    assert params == pytest.approx(wanted, rel=1e-9)


def test_wrong_loops_are_refused_with_a_clear_error(nursery: Nursery) -> None:
    world = World(nursery, 1)

    def run() -> list[str]:
        import jax.numpy as jnp
        import numpy as np
        import optax

        import farandole.jax as hvd

        hvd.init()
        said = []

        def expect(function: Any) -> None:
            with pytest.raises(ValueError) as error:
                function()
            said.append(str(error.value))

        loader = hvd.elastic.ElasticLoader(np.ones((4, 2)), batch_size=2)
        expect(lambda: hvd.elastic.steps(loader, params={"w": jnp.ones(2)}))
        expect(lambda: hvd.elastic.steps([1, 2]))
        expect(lambda: hvd.elastic.ElasticLoader((np.ones(3), np.ones(4)), batch_size=2))

        class Ranges:
            def __len__(self) -> int:
                return 20

            def farandole_read(self, ranges: Any) -> dict[str, Any]:
                return {"x": np.concatenate([np.arange(*each) for each in ranges])}

        ranged = hvd.elastic.ElasticLoader(Ranges(), batch_size=2)
        assert ranged.next(2, 1).data["x"].tolist() == [2, 3]
        expect(lambda: hvd.elastic.ElasticLoader(Ranges(), batch_size=2, shuffle=True))
        expect(lambda: hvd.elastic.ElasticLoader(np.ones(3), batch_size=2, seed=1.5))
        expect(lambda: hvd.elastic.ElasticLoader(np.ones(3), batch_size=2, shuffle="false"))
        expect(lambda: hvd.elastic.ElasticLoader(np.ones(3), batch_size=2, drop_last="no"))
        expect(lambda: hvd.elastic.ElasticLoader(3, load="rows", batch_size=2))
        expect(lambda: hvd.distributed_grad(jnp.sum, compression="fp16"))
        loop = hvd.elastic.steps(loader, state=hvd.elastic.TrainState(w=jnp.ones(2)))
        expect(lambda: list(loop))
        remembering = hvd.distributed(optax.sgd(1.0), compression=hvd.Compression.int8)
        expect(lambda: remembering.update(jnp.ones(2), remembering.init(jnp.ones(2))))
        return said

    try:
        (said,) = world.run(run)
    finally:
        world.close()
    for sentence, words in zip(
        said,
        (
            *("TrainState(params=...)", "ElasticLoader(...)", "as many rows", "read in its own order"),
            *("seed must be a whole number", "shuffle must be True or False", "drop_last must be True or False"),
            *("load must be a function", "compression must be one of"),
            *("reduced no gradients", "another compression"),
        ),
        strict=True,
    ):
        assert words in sentence
