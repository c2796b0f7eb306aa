"""What goes wrong in functions that JAX compiles is said in sentences, on all ranks, and soon."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
from waiting import until
from worlds import Nursery, Worker, WorkerGone, World


def begin() -> None:
    import farandole.jax as hvd

    hvd.init()


def test_a_killed_worker_ends_a_compiled_step_within_two_seconds(jax_nursery: Nursery, tmp_path: Path) -> None:
    world = World(jax_nursery, 3, {"FARANDOLE_FAILURE_DEADLINE": ""})
    try:
        world.run(begin)

        def train(folder: Path) -> tuple[str, int | None, float]:
            import jax
            import jax.numpy as jnp

            import farandole.jax as hvd
            from farandole.errors import WorkerLostError, lost_rank_behind

            step = jax.jit(lambda x: hvd.allreduce(jnp.tanh(x @ x), op=hvd.Sum))
            x = jnp.ones((200, 200), jnp.float32)
            try:
                while True:
                    jax.block_until_ready(step(x))
                    (folder / str(hvd.rank())).touch()
            except jax.errors.JaxRuntimeError as error:
                at = time.time()
                assert lost_rank_behind(error) == 1
                with pytest.raises(WorkerLostError) as ours, hvd.translated():
                    raise
                return str(ours.value), ours.value.rank, at

        world.start(train, tmp_path)
        until(lambda: len(list(tmp_path.iterdir())) == 3, "all workers have made a step")
        killed = time.time()
        world.workers[1].kill(signal.SIGKILL)
        for rank, outcome in world.failures():
            assert rank == 1 and isinstance(outcome, WorkerGone)
        sentences = world.collect((0, 2))
        for sentence, rank, at in sentences:
            assert "rank 1" in sentence and rank == 1
            assert at - killed < 2
    finally:
        world.close()


def test_wrong_calls_are_answered_by_sentences(jax_nursery: Nursery) -> None:
    world = World(jax_nursery, 2)

    def run() -> dict[str, str]:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd
        from farandole.errors import InvalidRequestError, MismatchError, NotInitializedError
        from farandole.worker.collectives.compression import PowerSGD

        said: dict[str, str] = {}

        def expect(what: str, kind: type[Exception], function: Any, *arguments: Any) -> None:
            with pytest.raises(kind) as error, hvd.translated():
                jax.block_until_ready(function(*arguments))
            said[what] = str(error.value)

        reduce = jax.jit(lambda x: hvd.allreduce(x))
        expect("traced before init", NotInitializedError, jax.jit(lambda x: hvd.allgather(x)), jnp.ones(2))
        hvd.init()
        rank = hvd.rank()
        assert reduce(jnp.ones(3)).tolist() == [1.0] * 3
        expect("shapes", MismatchError, reduce, jnp.ones(4 + rank))
        expect("ragged", MismatchError, jax.jit(lambda x: hvd.allgather(x)), jnp.ones(4 + rank))
        assert hvd.allgather(jnp.ones(4 + rank)).shape == (9,)
        expect("rows", InvalidRequestError, jax.jit(hvd.reducescatter), jnp.ones(3))
        expect("splits", InvalidRequestError, jax.jit(lambda x: hvd.alltoall(x, splits=[1, 2])), jnp.ones(3))
        expect("too many", InvalidRequestError, jax.jit(lambda x: hvd.alltoall(x, splits=[2, 2])), jnp.ones(2))
        expect("traced splits", InvalidRequestError, jax.jit(hvd.alltoall), jnp.ones(2), jnp.ones(2, jnp.int32))
        # Rows that are left over stay, as outside of compiled functions.
        some, counts = jax.jit(lambda x: hvd.alltoall(x, splits=[1, 1]))(jnp.arange(3.0) + 10 * rank)
        assert some.tolist() == [rank, 10.0 + rank] and list(counts) == [1, 1]
        expect("handles", InvalidRequestError, jax.jit(lambda x: hvd.allreduce_async(x)), jnp.ones(3))
        expect("complex", InvalidRequestError, jax.jit(hvd.allreduce), jnp.ones(3, jnp.complex64))
        expect("key", InvalidRequestError, hvd.allreduce, jax.random.key(0))
        expect("structure", InvalidRequestError, hvd.allreduce, {"weights": jnp.ones(2)})
        feedback = hvd.Compression.int8.with_feedback()
        expect(
            "feedback",
            InvalidRequestError,
            jax.jit(lambda x: hvd.allreduce(x, compression=feedback, name="x")),
            jnp.ones(3),
        )
        powersgd = PowerSGD(2)
        matrix = jnp.ones((8, 8))
        expect("powersgd", InvalidRequestError, lambda: hvd.allreduce(matrix, compression=powersgd, name="x"))
        expect(
            "compiled powersgd",
            InvalidRequestError,
            jax.jit(lambda x: hvd.allreduce(x, compression=powersgd, name="x")),
            matrix,
        )
        expect("distributed powersgd", InvalidRequestError, lambda: hvd.distributed(None, compression=powersgd))
        expect("no powersgd", AttributeError, lambda: hvd.Compression.powersgd(2))
        assert reduce(jnp.ones(3)).tolist() == [1.0] * 3
        gather = jax.jit(lambda x: hvd.allgather(x))
        assert gather(jnp.ones(2)).shape == (4,)
        hvd.shutdown()
        expect("after shutdown", NotInitializedError, reduce, jnp.ones(3))
        return said

    try:
        for said in world.run(run):
            assert "use hvd.init()" in said["traced before init"] and "use hvd.init()" in said["after shutdown"]
            assert "[4]" in said["shapes"] and "[5]" in said["shapes"]
            assert "different first dimensions" in said["ragged"]
            assert "(3) is not a multiple of the number of workers (2)" in said["rows"]
            assert "parts have to be equal" in said["splits"]
            assert "greater" in said["too many"]
            assert "known when it is traced" in said["traced splits"]
            assert "Call the plain function" in said["handles"]
            assert "complex64 is not supported" in said["complex"]
            assert "Keys of jax.random can only be moved" in said["key"]
            assert "got dict" in said["structure"] and "hvd.grouped_allreduce(gradients)" in said["structure"]
            assert "hvd.distributed(optimizer)" in said["feedback"]
            for key in ("powersgd", "compiled powersgd", "distributed powersgd", "no powersgd"):
                assert "Use Compression.int8 or Compression.topk(...)" in said[key]
    finally:
        world.close()


@pytest.fixture
def worker(jax_nursery: Nursery) -> Any:
    """Return a process that is in no world yet."""
    worker = jax_nursery.fork({"FARANDOLE_LISTEN": "127.0.0.1"})
    yield worker
    worker.close()


def test_derivatives_where_ranks_have_other_numbers_of_rows(jax_nursery: Nursery) -> None:
    """Their shapes are not known when the function is traced: an error on all ranks, and right numbers after it."""

    def run() -> dict[str, str]:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd

        hvd.init()
        rank = hvd.rank()
        said = {}
        squares = {
            "allgather": lambda x: (hvd.allgather(x) ** 2).sum(),
            "alltoall": lambda x: (hvd.alltoall(x) ** 2).sum(),
            "unequal splits": lambda x: (hvd.alltoall(x, splits=[1, 3])[0] ** 2).sum(),
        }
        for name, square in squares.items():
            for way, transform in (("eager", lambda function: function), ("jit", jax.jit)):
                with pytest.raises(ValueError if name == "unequal splits" else hvd.HorovodInternalError) as error:
                    with hvd.translated():
                        jax.block_until_ready(transform(jax.grad(square))(jnp.ones(4 + 2 * rank)))
                said[f"{name}, {way}"] = str(error.value)
        gathered = jax.jit(jax.grad(squares["allgather"]))(jnp.ones(2) * (rank + 1))
        exchanged = jax.jit(jax.grad(squares["alltoall"]))(jnp.ones(2) * (rank + 1))
        assert gathered.tolist() == exchanged.tolist() == [2.0 * (rank + 1)] * 2
        return said

    world = World(jax_nursery, 2)
    try:
        for said in world.run(run):
            for way in ("eager", "jit"):
                assert "different first dimensions" in said[f"allgather, {way}"]
                assert "different first dimensions" in said[f"alltoall, {way}"]
                assert "parts have to be equal" in said[f"unequal splits, {way}"]
    finally:
        world.close()


def test_functions_of_a_worker_that_is_alone_are_compiled_again_in_a_larger_world(jax_nursery: Nursery) -> None:
    """They have no collectives. What the user compiled ahead of time says so; nothing computes a wrong number."""

    def run() -> tuple[list[list[float]], str]:
        import os

        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd

        # Without them, there is no launcher.
        place = {name: os.environ.pop(name) for name in ("FARANDOLE_RANK", "FARANDOLE_ROSTER", "FARANDOLE_SECRET")}
        hvd.init()
        assert hvd.size() == 1
        both = jax.jit(lambda x: (hvd.allreduce(x, op=hvd.Sum, prescale_factor=3.0, postscale_factor=0.5), x + 1))
        gather = jax.jit(lambda x: hvd.allgather(x))
        x = jnp.ones(2)
        ahead = both.lower(x).compile()
        values = [both(x)[0].tolist(), gather(x).tolist(), ahead(x)[0].tolist()]
        assert hvd.stats()["operations"].get("allreduce", {"requests": 0})["requests"] == 0
        hvd.shutdown()
        os.environ.update(place)
        hvd.init()
        assert hvd.size() == 2
        values += [both(x)[0].tolist(), gather(x).tolist()]
        with pytest.raises(ValueError) as error, hvd.translated():
            jax.block_until_ready(ahead(x))
        return values, str(error.value)

    world = World(jax_nursery, 2)
    try:
        for values, sentence in world.run(run):
            assert values == [[1.5] * 2, [1.0] * 2, [1.5] * 2, [3.0] * 2, [1.0] * 4]
            assert "compiled for another number of workers than the 2 that there are now" in sentence
            assert "jax.clear_caches()" in sentence
    finally:
        world.close()


def test_a_function_compiled_for_another_number_of_workers_says_so(worker: Worker) -> None:
    def run() -> tuple[str, list[float]]:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd

        hvd.init()
        process_set = hvd.global_process_set
        # As if it had been traced in a world of two.
        ranks, process_set.ranks = process_set.ranks, [0, 1]
        compiled = jax.jit(lambda x: hvd.allgather(x)).lower(jnp.ones(2)).compile()
        reduce = jax.jit(lambda x: hvd.allreduce(x)).lower(jnp.ones(2)).compile()
        process_set.ranks = ranks
        with pytest.raises(ValueError) as error, hvd.translated():
            jax.block_until_ready(compiled(jnp.ones(2)))
        return str(error.value), reduce(jnp.ones(2)).tolist()

    worker.send(run, ())
    sentence, values = worker.receive()
    assert "compiled for another number of workers than the 1 that there are now" in sentence
    assert "jax.clear_caches()" in sentence
    assert values == [1.0, 1.0]


def test_numbers_that_would_lose_bits_are_refused(worker: Worker) -> None:
    def run() -> list[str]:
        import jax
        import numpy as np

        import farandole.jax as hvd

        jax.config.update("jax_enable_x64", False)
        hvd.init()
        said = []
        for given in (np.ones(2, np.int64), np.float64(1)):
            with pytest.raises(ValueError) as error:
                hvd.allreduce(given)
            said.append(str(error.value))
        assert hvd.allreduce([1.0, 2.0]).dtype == np.float32
        return said

    worker.send(run, ())
    whole, real = worker.receive()
    assert "would convert this array from int64 to int32" in whole and "astype('int32')" in whole
    assert "would convert this array from float64 to float32" in real


def test_numbers_of_rows_are_right_or_an_error(worker: Worker) -> None:
    def run() -> list[int]:
        import jax

        from farandole.errors import InvalidRequestError
        from farandole.jax.arrays import Arrays

        jax.config.update("jax_enable_x64", False)
        with pytest.raises(InvalidRequestError, match="jax_enable_x64"):
            Arrays().whole_numbers([2**31], None)
        found: list[int] = Arrays().whole_numbers([0, 2**31 - 1], None).tolist()
        return found

    # In a process of its own: one that has used JAX may not be forked any more, as other tests do.
    worker.send(run, ())
    assert worker.receive() == [0, 2**31 - 1]
