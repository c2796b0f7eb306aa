"""Collectives among MXNet's operations: in its order, without waiting, and with its errors."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from worlds import Nursery, World

# A lost worker is noticed within milliseconds; the machine may be busy.
AT_ONCE_SECONDS = 10.0


def test_computations_before_and_after_a_collective_have_the_right_values(world: World) -> None:
    """Nothing waits here, so that reads and writes would overlap if MXNet did not know of them."""

    def body() -> None:
        import mxnet as mx
        import numpy as np

        import farandole.mxnet as hvd

        size = hvd.size()
        for round in range(30):
            array = mx.nd.ones((200, 300)) * (hvd.rank() + round)
            total = hvd.allreduce(array * 2, op=hvd.Sum)
            given = array + 0
            hvd.allreduce_(given, op=hvd.Sum)
            after = given + total
            given[:] = -1
            array[:] = -1
            wanted = sum(rank + round for rank in range(size))
            np.testing.assert_array_equal(total.asnumpy(), np.full((200, 300), 2.0 * wanted))
            np.testing.assert_array_equal(after.asnumpy(), np.full((200, 300), 3.0 * wanted))
            assert float(given.max().asscalar()) == -1

    world.run(body)


def test_ranks_that_begin_calls_in_other_orders_do_not_block_each_other(world: World) -> None:
    """With calls that hold a thread of MXNet each until they are done, four of them would be enough."""

    def body() -> None:
        import mxnet as mx

        import farandole.mxnet as hvd

        count, rank = 100, hvd.rank()
        results: dict[int, Any] = {}
        for number in range(count) if rank == 0 else reversed(range(count)):
            priority = number if rank else -number
            results[number] = hvd.allreduce(mx.nd.ones((3,)) * number, name=f"other.{number}", priority=priority)
        assert [float(results[number][0].asscalar()) for number in range(count)] == list(range(count))

    world.run(body)


def test_a_call_in_place_may_be_given_views_of_one_array_and_one_array_twice(world: World) -> None:
    """MXNet lets an operation that has an array twice wait for itself; here it has the array once."""

    def body() -> None:
        import mxnet as mx

        import farandole.mxnet as hvd

        array = mx.nd.arange(6)
        hvd.grouped_allreduce_([array[0:2], array[2:4], array[4:6]], op=hvd.Sum)
        assert array.asnumpy().tolist() == [hvd.size() * each for each in range(6)]
        once = hvd.grouped_allreduce([array, array], op=hvd.Max)
        assert [each.asnumpy().tolist() for each in once] == [array.asnumpy().tolist()] * 2

    world.run(body)


def test_result_of_a_convolution_is_reduced_in_the_right_layout(world: World) -> None:
    """oneDNN leaves it in blocks of channels."""

    def body() -> None:
        import mxnet as mx
        import numpy as np

        import farandole.mxnet as hvd

        mx.random.seed(3)
        layer = mx.gluon.nn.Conv2D(16, 3, in_channels=8)
        layer.initialize()
        images = mx.nd.random.uniform(shape=(2, 8, 16, 16))
        wanted = layer(images).asnumpy()
        np.testing.assert_array_equal(hvd.allreduce(layer(images), op=hvd.Max).asnumpy(), wanted)
        np.testing.assert_array_equal(hvd.allgather(layer(images)).asnumpy()[:2], wanted)
        written = layer(images)
        hvd.allreduce_(written, name="in blocks")
        try:
            written.asnumpy()
        except mx.base.MXNetError as error:
            assert "Use the function without the underscore" in str(error)
        else:
            raise AssertionError("the machine's oneDNN uses no blocks: choose other sizes")

    world.run(body)


def test_an_error_comes_where_the_result_is_used_on_all_ranks_and_the_job_goes_on(world: World) -> None:
    def body() -> None:
        import mxnet as mx

        import farandole.mxnet as hvd
        from farandole.errors import MismatchError
        from farandole.mxnet.errors import translate

        result = hvd.allreduce(mx.nd.ones((2 + hvd.rank(),)), name="different") + 1
        try:
            result.wait_to_read()
        except mx.base.MXNetError as error:
            assert str(error).startswith("MismatchError: Mismatched allreduce tensor shapes")
            assert isinstance(translate(error), MismatchError)
        else:
            raise AssertionError("no error")
        assert float(hvd.allreduce(mx.nd.ones((1,)), name="different").asscalar()) == 1

    world.run(body)


def test_arrays_that_cannot_be_sent_are_refused_at_once(world: World) -> None:
    def body() -> list[str]:
        import mxnet as mx
        import numpy as np

        import farandole.mxnet as hvd

        told = []
        for wrong in (np.ones(2), mx.nd.ones((2, 2)).tostype("row_sparse")):
            for call in (hvd.allreduce, hvd.allreduce_, hvd.allgather):
                try:
                    call(wrong)
                except ValueError as error:
                    told.append(str(error))
        return told

    for told in world.run(body):
        assert len(told) == 6
        assert "takes arrays of MXNet, but got ndarray. Pass mx.nd.array(value)" in told[0]
        assert "a sparse array (row_sparse) cannot be sent" in told[3]


def test_requests_that_the_engine_would_refuse_raise_at_the_call_and_are_not_counted(world: World) -> None:
    """Else the unnamed calls of this rank would have other numbers than those of the other one from then on."""

    def body() -> list[str]:
        import mxnet as mx

        import farandole.mxnet as hvd

        array, whole = mx.nd.ones((2,)), mx.nd.ones((2,), dtype="int32")
        other = hvd.add_process_set([1])
        told = []
        for wrong in (
            lambda: hvd.broadcast(array, 2),
            lambda: hvd.broadcast_(array, 0, process_set=other),
            lambda: hvd.allreduce(array, op=6),
            lambda: hvd.allreduce_(whole, op=hvd.Adasum),
            lambda: hvd.allreduce(whole, compression=hvd.Compression.int8),
        ):
            if hvd.rank() == 0:
                try:
                    wrong()
                except ValueError as error:
                    told.append(str(error))
        hvd.remove_process_set(other)
        assert float(hvd.allreduce(array, op=hvd.Sum).sum().asscalar()) == 4
        assert float(hvd.broadcast(array, 0).sum().asscalar()) == 2
        return told

    told, _ = world.run(body)
    assert len(told) == 5
    assert "invalid root rank 2: the ranks of the process set are [0, 1]" in told[0]
    assert "rank 0 is not a member of the provided process set (its ranks are [1])" in told[1]
    assert "6 is not a valid reduction" in told[2]
    assert "Adasum is for floating-point arrays" in told[3]
    assert "for float16 and float32, not for int32" in told[4]


def test_the_newer_arrays_of_mxnet_stay_what_they_are(world: World) -> None:
    def body() -> None:
        import mxnet as mx

        import farandole.mxnet as hvd

        mx.npx.set_np()
        try:
            for array in (mx.np.ones((3, 2)), mx.np.array(4.0)):
                result = hvd.allreduce(array)
                assert isinstance(result, mx.np.ndarray)
                assert result.shape == array.shape
                assert hvd.allreduce_(array) is array
            assert isinstance(hvd.reducescatter(mx.np.ones((3, 2))), mx.np.ndarray)
            assert isinstance(hvd.allgather(mx.np.ones((3, 2))), mx.np.ndarray)
        finally:
            mx.npx.reset_np()

    world.run(body)


def test_a_fork_waits_for_the_calls_under_way(world: World) -> None:
    """MXNet ends its threads before a fork, while it holds Python's lock, which these may be waiting for."""

    def body() -> None:
        import os

        import mxnet as mx

        import farandole.mxnet as hvd

        arrays = [mx.nd.ones((1000,)) for _ in range(50)]
        for number, array in enumerate(arrays):
            hvd.allreduce_(array, name=f"before.{number}", op=hvd.Sum)
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        assert [float(array[0].asscalar()) for array in arrays] == [hvd.size()] * 50

    world.run(body)


@pytest.mark.parametrize("sends", [True, False], ids=["under way", "begun later"])
def test_a_lost_worker_ends_the_calls_that_need_it(mxnet_nursery: Nursery, sends: bool) -> None:
    world = World(mxnet_nursery, 3, {"FARANDOLE_FAILURE_DEADLINE": ""})
    try:
        world.run(_first)
        if sends:
            world.run(_send, ranks=[0, 2])
        world.workers[1].kill(signal.SIGKILL)
        killed = time.monotonic()
        if not sends:
            world.run(_send, ranks=[0, 2])
        for failed, texts in world.run(_fail, ranks=[0, 2]):
            assert failed - killed < AT_ONCE_SECONDS
            assert len(texts) == 3
            assert all(text.startswith("WorkerLostError: rank 1 was lost") and rank == 1 for text, rank in texts), texts
    finally:
        world.broken = True
        world.close()


def _first() -> None:
    import mxnet as mx

    import farandole.mxnet as hvd

    hvd.init()
    assert float(hvd.allreduce(mx.nd.ones((1,)), op=hvd.Sum).asscalar()) == 3


def _send() -> None:
    import mxnet as mx
    from frontends import KEPT

    import farandole.mxnet as hvd

    KEPT[:] = [hvd.allreduce(mx.nd.ones((5,)), name=f"pending.{number}") * 2 for number in range(3)]


def _fail() -> tuple[float, list[tuple[str, int | None]]]:
    import mxnet as mx
    from frontends import KEPT

    from farandole.errors import lost_rank_behind

    texts = []
    for array in KEPT:
        try:
            array.wait_to_read()
        except mx.base.MXNetError as error:
            texts.append((str(error), lost_rank_behind(error)))
    return time.monotonic(), texts


def run(directory: Path, program: str, **variables: str) -> str:
    """Run a program on two workers, and return what they printed."""
    import os

    script = directory / "script.py"
    script.write_text("import mxnet as mx\nimport farandole.mxnet as hvd\nhvd.init()\n" + program)
    done = subprocess.run(
        [sys.executable, "-m", "farandole", "run", "-np", "2", sys.executable, str(script)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


LEAVES = """
result = hvd.allreduce(mx.nd.ones((1000, 1000)) * (hvd.rank() + 1), op=hvd.Sum)
if hvd.rank() == 1:  # The other one goes, and has not waited for it.
    print("total", float(result.max().asscalar()))
"""


def test_a_program_may_end_without_waiting_for_what_others_need(mxnet_nursery: Nursery, tmp_path: Path) -> None:
    assert "[1]<stdout>:total 3.0\n" in run(tmp_path, LEAVES)


IN_ORDER = """
array = mx.nd.ones((3, 2)) * (hvd.rank() + 1)
print("total", float(hvd.allreduce(array, op=hvd.Sum).max().asscalar()))
hvd.grouped_allreduce_([array, array + 1], op=hvd.Sum)
print("in place", float(array.max().asscalar()), hvd.allgather(array).shape, hvd.reducescatter(array).shape[1])
"""


def test_mxnets_engine_without_threads_is_waited_for(mxnet_nursery: Nursery, tmp_path: Path) -> None:
    """It is what people debug with; it knows no operations that end later than they begin."""
    said = run(tmp_path, IN_ORDER, MXNET_ENGINE_TYPE="NaiveEngine")
    assert said.count("total 3.0\n") == 2
    assert said.count("in place 3.0 (6, 2) 2\n") == 2
