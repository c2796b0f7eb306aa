"""broadcast and barrier."""

from __future__ import annotations

import time

import numpy as np
import pytest
from frontends import DTYPES


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_values(world, dtype):
    """All ranks get the root's tensor, whichever rank is the root; only in-place forms change the input."""

    def body(front):
        hvd = front.hvd
        for shape in ((), (0,), (1,), (5, 7), (1023,)):
            base = np.arange(int(np.prod(shape))).reshape(shape)
            for root in range(hvd.size()):
                wanted = ((base + root) % 2).astype(DTYPES[dtype])
                mine = (base + hvd.rank()) % 2
                tensor = front.tensor(mine, dtype)
                for result in (
                    hvd.broadcast(tensor, root),
                    *front.at_once([("broadcast", tensor, {"root_rank": root})]),
                ):
                    assert front.dtype(result) == dtype
                    np.testing.assert_array_equal(front.array(result), wanted)
                np.testing.assert_array_equal(front.array(tensor), mine.astype(DTYPES[dtype]))
                if "broadcast in place" in front.has:
                    np.testing.assert_array_equal(front.array(front.broadcast_in_place(tensor, root)), wanted)
                if "handles" in front.has:
                    tensor = front.tensor(mine, dtype)
                    hvd.synchronize(hvd.broadcast_async_(tensor, root))
                    np.testing.assert_array_equal(front.array(tensor), wanted)

    world.run(body)


def test_large(world):
    def body(front):
        hvd = front.hvd
        for root in range(hvd.size()):
            tensor = front.tensor(np.full(3_000_001, hvd.rank()))
            assert (front.array(hvd.broadcast(tensor, root)) == root).all()

    world.run(body)


@pytest.mark.needs("gradients")
def test_gradient(world):
    """The root gets the average of the gradients, the others zeros."""

    def body(front):
        hvd = front.hvd
        root = hvd.size() - 1
        gradient = front.gradient(
            lambda tensor: front.sum(hvd.broadcast(tensor, root) * (hvd.rank() + 1)), np.ones((2, 3))
        )
        mean = sum(range(1, hvd.size() + 1)) / hvd.size()
        np.testing.assert_allclose(gradient, np.full((2, 3), mean if hvd.rank() == root else 0.0))

    world.run(body)


def test_objects(world):
    """Ranks other than the root may pass anything, also nothing."""

    def body(front):
        hvd = front.hvd
        for root in range(hvd.size()):
            thing = {"root": root, "payload": b"x" * 100_000}
            assert hvd.broadcast_object(thing if hvd.rank() == root else None, root_rank=root) == thing
        assert hvd.broadcast_object(hvd.rank(), name="named") == 0

    world.run(body)


@pytest.mark.parametrize("wrong", [{"root_rank": "0"}, {"root_rank": 1.5}, {"name": 5}])
def test_objects_with_an_argument_of_wrong_type(world, wrong):
    def body(front):
        try:
            front.hvd.broadcast_object(1, **wrong)
        except ValueError as error:
            assert f"broadcast_object: {next(iter(wrong))} is " in str(error), error
        else:
            raise AssertionError(f"broadcast_object took {wrong}")

    world.run(body)


def test_object_that_cannot_be_pickled_is_an_error_on_all_ranks(world):
    """No rank waits for it, and the next call works."""

    def body(front):
        hvd = front.hvd
        root = hvd.size() - 1
        try:
            hvd.broadcast_object((each for each in ()) if hvd.rank() == root else None, root_rank=root)
        except TypeError as error:
            assert hvd.rank() == root and "pickle" in str(error), error
        except ValueError as error:
            assert f"the object of rank {root} cannot be pickled: TypeError" in str(error), error
        else:
            raise AssertionError("a generator was sent")
        assert hvd.broadcast_object(hvd.rank()) == 0

    world.run(body)


def test_barrier_waits_for_the_last(world):
    def body(front):
        hvd = front.hvd
        hvd.barrier()
        if hvd.rank() == hvd.size() - 1:
            time.sleep(0.05)
        arrived = time.monotonic()
        hvd.barrier()
        return arrived, time.monotonic()

    times = world.run(body)
    assert min(left for _, left in times) >= max(arrived for arrived, _ in times)


def test_barriers_of_several_threads(world):
    """Each rank has as many threads in barriers; all of them come through."""

    def body(front):
        import threading

        hvd = front.hvd
        through = []

        def wait():
            for _ in range(20):
                hvd.barrier()
            through.append(True)

        threads = [threading.Thread(target=wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        return len(through)

    assert world.run(body) == [3] * world.size
