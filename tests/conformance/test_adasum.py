"""Adasum: orthogonal vectors are summed, parallel ones averaged, and all else is as its formula says."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import FLOATS, adasum, check

# Three roundings at most, of vectors that may grow to the number of ranks times their length.
TOLERANCE = 4.0


@pytest.mark.needs("grouped", "process sets")
def test_formula(world):
    """Every form, float type and size of group follows the formula, for each tensor alone, although all are fused."""

    def body(front):
        hvd = front.hvd
        size = hvd.size()
        groups = [list(range(0, size, 2)), list(range(1, size, 2))] if size > 1 else []
        groups += [list(range(size - 1, size - 4, -1))] if size > 3 else []
        sets = [hvd.global_process_set, *map(hvd.add_process_set, groups)]
        for process_set in sets:
            if not process_set.included():
                continue
            for dtype in filter(front.dtypes.__contains__, FLOATS):
                noise = np.random.default_rng(5)
                shapes = [(1,), (33,), (4, 7), (0,), (), (3001,)]
                given = [
                    [front.array(front.tensor(noise.normal(size=shape), dtype)) for shape in shapes]
                    for _ in range(size)
                ]
                wanted = [adasum([given[rank][i] for rank in process_set.ranks]) for i in range(len(shapes))]

                def tensors(dtype=dtype, given=given):
                    return [front.tensor(array, dtype) for array in given[hvd.rank()]]

                how = {"op": hvd.Adasum, "process_set": process_set}
                forms = [
                    [hvd.allreduce(tensor, **how) for tensor in tensors()],
                    front.at_once([("allreduce", tensor, how) for tensor in tensors()]),
                    hvd.grouped_allreduce(tensors(), **how),
                ]
                if "in place" in front.has:
                    in_place = tensors()
                    forms += [hvd.grouped_allreduce_(in_place, **how), in_place]
                for outputs in forms:
                    for output, total in zip(outputs, wanted, strict=True):
                        assert front.dtype(output) == dtype
                        check(front.array(output), total, dtype, TOLERANCE)
                for first, other in zip(forms[0], forms[2], strict=True):
                    np.testing.assert_array_equal(front.array(first), front.array(other))
        for process_set in sets[1:]:
            assert hvd.remove_process_set(process_set)

    world.run(body)


def test_orthogonal_vectors_are_summed(world):
    def body(front):
        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()
        basis, _ = np.linalg.qr(np.random.default_rng(2).normal(size=(size * 20 + 1, size)))
        for dtype in filter(front.dtypes.__contains__, ("float32", "float64")):
            output = front.array(hvd.allreduce(front.tensor(basis[:, rank], dtype), op=hvd.Adasum))
            np.testing.assert_allclose(output, basis.sum(axis=1), atol=1e-6)

    world.run(body)


def test_parallel_vectors_are_averaged(world):
    """Equal weights, if the number of ranks is a power of two; also if squares leave the type's range."""
    if world.size == 3:
        pytest.skip("three ranks fold: two of them weigh a quarter each, the third a half")

    def body(front):
        hvd = front.hvd
        weights = np.random.default_rng(3).normal(size=hvd.size())
        for dtype, scale in (
            ("float32", 1.0),
            ("float32", 1e-30),
            ("float32", 1e25),
            ("float16", 1e-4),
            ("float16", 90),
        ):
            vector = np.random.default_rng(4).normal(size=1000) * scale
            given = [front.array(front.tensor(vector * weight, dtype)) for weight in weights]
            output = hvd.allreduce(front.tensor(given[hvd.rank()], dtype), op=hvd.Adasum)
            wanted = np.mean([array.astype(np.float64) for array in given], axis=0)
            error = np.linalg.norm(front.array(output) - wanted) / np.linalg.norm(wanted)
            # As near as Horovod's own test wants it, which allows a hundred times the type's precision.
            assert error < 100 * np.finfo(dtype).eps, (dtype, scale, error)

    world.run(body)


def test_scales(world):
    def body(front):
        hvd = front.hvd
        given = [np.random.default_rng(rank).normal(size=40) for rank in range(hvd.size())]
        how = {"prescale_factor": 0.5, "postscale_factor": 3.0}
        for dtype, tolerance in (("float32", 1e-5), ("float64", 1e-12)):
            if dtype in front.dtypes:
                output = hvd.allreduce(front.tensor(given[hvd.rank()], dtype), op=hvd.Adasum, **how)
                wanted = adasum([array * 0.5 for array in given]) * 3.0
                np.testing.assert_allclose(front.array(output), wanted, rtol=tolerance, atol=tolerance)

    world.run(body)


def test_whole_numbers_are_refused(world):
    def body(front):
        hvd = front.hvd
        for dtype in ("int32", "uint8", "bool"):
            try:
                hvd.allreduce(front.tensor([1], dtype), op=hvd.Adasum)
            except ValueError as error:
                assert "Adasum" in str(error), error
            else:
                raise AssertionError(f"Adasum took {dtype}")
        assert front.number(hvd.allreduce(front.tensor([1.0]), op=hvd.Sum)) == hvd.size()

    world.run(body)


@pytest.mark.needs("gradients")
def test_gradient(world):
    """As in Horovod: the adaptive sum of the gradients."""

    def body(front):
        hvd = front.hvd
        weights = [np.random.default_rng(rank).normal(size=12) for rank in range(hvd.size())]
        gradient = front.gradient(
            lambda tensor: front.sum(
                hvd.allreduce(tensor, op=hvd.Adasum) * front.tensor(weights[hvd.rank()], "float64")
            ),
            np.ones(12),
        )
        np.testing.assert_allclose(gradient, adasum(weights), rtol=1e-12)

    world.run(body)
