"""join: ranks whose data has ended let the others go on."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import FLOATS, INTEGERS, adasum, check, reduced, values

pytestmark = pytest.mark.needs("join")


@pytest.fixture
def crowd(world):
    if world.size < 2:
        pytest.skip("needs at least two ranks")
    return world


def test_all_at_once_and_again(world):
    """The same rank on all of them, each time."""

    def body(front):
        return [int(front.hvd.join()) for _ in range(5)]

    answers = world.run(body)
    assert all(answer == answers[0] for answer in answers)
    assert all(0 <= last < world.size for last in answers[0])


def test_the_last_one_is_told(crowd):
    """Every rank in turn is the last to join: it reduces until all others have."""

    def body(front):
        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()
        lasts = []
        for last in range(size):
            if rank != last:
                device = [rank] if "handles" in front.has else []
                lasts.append(int(hvd.join(*device)))
                continue
            one = front.tensor([1.0])
            # The sum falls to 1 when nobody else contributes any more.
            while front.number(hvd.allreduce(one, name="who.is.left", op=hvd.Sum)) > 1:
                pass
            lasts.append(int(hvd.join()))
        return lasts

    # While not all others have joined, the last one's allreduce completes without those that have.
    assert crowd.run(body) == [list(range(crowd.size))] * crowd.size


@pytest.mark.parametrize("known", [False, True], ids=["new names", "known names"])
def test_allreduce_goes_on(crowd, known):
    """The joined rank contributes what changes nothing; averages divide by the full size. Values of every type."""

    def body(front):
        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()
        cases = [(dtype, op) for dtype in (*INTEGERS, *FLOATS) for op in ("Average", "Sum", "Min", "Max", "Product")]
        cases += [("bool", op) for op in ("Sum", "Min", "Max", "Product")]
        cases = [(dtype, op) for dtype, op in cases if dtype in front.dtypes]

        def call(dtype, op):
            how = {"op": getattr(hvd, op), "prescale_factor": 1.0, "postscale_factor": 1.0}
            return "allreduce", front.tensor(values(rank, (5, 3), dtype), dtype), {"name": f"{dtype}.{op}", **how}

        for absent in (0, size - 1):
            if known:
                for case in cases:
                    front.at_once([call(*case)])
            if rank != absent:
                outputs = front.at_once([call(*case) for case in cases])
                for (dtype, op), output in zip(cases, outputs, strict=True):
                    inputs = [values(each, (5, 3), dtype) for each in range(size) if each != absent]
                    if op == "Average":
                        inputs.append(np.zeros((5, 3), inputs[0].dtype))
                    check(front.array(output), reduced(inputs, op, dtype), dtype)
            hvd.join()

    crowd.run(body)


def test_scales_grouped_and_adasum_go_on(crowd):
    def body(front):
        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()
        if rank != 0:
            others = list(range(1, size))
            how = {"op": hvd.Sum, "prescale_factor": 0.5, "postscale_factor": 4.0}
            outputs = hvd.grouped_allreduce([front.tensor([float(rank)] * n) for n in (1, 5)], name="grouped", **how)
            assert [front.array(each).tolist() for each in outputs] == [[2.0 * sum(others)] * n for n in (1, 5)]
            for op, wanted in (("Min", 1.0), ("Max", float(size - 1))):
                output = hvd.allreduce(front.tensor([float(rank)]), name=op, op=getattr(hvd, op), postscale_factor=2.0)
                assert front.number(output) == 2 * wanted
            vectors = [np.random.default_rng(each).normal(size=20) for each in range(size)]
            output = hvd.allreduce(front.tensor(vectors[rank], "float64"), name="adasum", op=hvd.Adasum)
            wanted = adasum([np.zeros(20), *vectors[1:]])
            np.testing.assert_allclose(front.array(output), wanted, rtol=1e-12)
        assert 0 <= hvd.join() < size

    crowd.run(body)


def test_allreduce_in_sets_goes_on(crowd):
    """Also in a process set that the joined rank is a member of; in a set that it is not in, nothing changes."""

    def body(front):
        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()
        with_0 = hvd.add_process_set([0, 1]) if size > 2 else hvd.global_process_set
        without_0 = hvd.add_process_set(list(range(1, size)))
        if rank == 1:
            one = front.tensor([3.0])
            assert front.number(hvd.allreduce(one, name="x", op=hvd.Sum, process_set=with_0)) == 3.0
            assert front.number(hvd.allreduce(one, name="y", process_set=with_0)) == 1.5
        if rank > 0:
            assert hvd.allgather_object(rank, process_set=without_0) == list(range(1, size))
            hvd.barrier(process_set=without_0)
        hvd.join()
        for process_set in (with_0, without_0):
            hvd.remove_process_set(process_set)

    crowd.run(body)


def test_others_are_refused_and_can_be_caught(crowd):
    """On the ranks that asked; then they join, and everything works again, unnamed calls too."""

    def body(front):
        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()
        one = front.tensor(np.ones((size, 2)))
        for turn in range(2):
            hvd.barrier()
            texts = []
            if rank != 0:
                # Joined or not yet: the first call of these waits for rank 0 and must fail all the same.
                calls = {
                    "allgather": lambda: hvd.allgather(one),
                    "broadcast": lambda: hvd.broadcast(one, 1),
                    "alltoall": lambda: hvd.alltoall(one),
                    "reducescatter": lambda: hvd.reducescatter(one),
                    "reduce": lambda: hvd.reduce(one, 1),
                }
                for kind, call in calls.items():
                    try:
                        call()
                    except hvd.HorovodInternalError as error:
                        texts.append(str(error))
                        assert kind in str(error) and "not supported while a rank has joined" in str(error), error
                        assert "rank 0" in str(error) or "ranks 0" in str(error), error
                    else:
                        raise AssertionError(f"{kind} went through without rank 0")
            hvd.join()
            assert front.number(hvd.allreduce(front.tensor([float(turn)]), op=hvd.Sum)) == turn * size
            assert hvd.allgather(one).shape[0] == size * size
            np.testing.assert_array_equal(front.array(hvd.broadcast(one * rank, 1)), np.ones((size, 2)))
            assert hvd.reducescatter(one).shape[0] == 1
            assert (front.array(hvd.reduce(one, 0, op=hvd.Sum)) == (size if rank == 0 else 1)).all()
            assert hvd.alltoall(one).shape[0] == size

    crowd.run(body)


def test_uneven_epochs(crowd):
    """The usual way: each rank has another number of batches, unnamed calls, and joins when it is through."""

    def body(front):
        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()
        for epoch in range(3):
            for step in range((rank + epoch) % size + 1):
                active = sum((each + epoch) % size + 1 > step for each in range(size))
                assert front.number(hvd.allreduce(front.tensor([6.0]))) == 6.0 * active / size
            hvd.join()

    crowd.run(body)
