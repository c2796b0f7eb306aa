"""allreduce: values against numpy, for every element type, operation and odd size."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import FLOATS, INTEGERS, check, values
from oracle import reduced as expected

SHAPES = [(), (0,), (1,), (7,), (3, 5), (2, 0, 3), (1023,), (17, 61)]
OPS = ["Average", "Sum", "Min", "Max", "Product"]


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
def test_values(world, dtype):
    """Plain, in-place and asynchronous calls return numpy's result, in the type of the input."""

    def body(front):
        hvd = front.hvd
        for shape in SHAPES:
            inputs = [values(rank, shape, dtype) for rank in range(hvd.size())]
            for op in OPS if front.is_thorough else OPS[:2]:
                wanted = expected(inputs, op, dtype)
                tensor = front.tensor(inputs[hvd.rank()], dtype)
                result = hvd.allreduce(tensor, op=getattr(hvd, op))
                assert front.dtype(result) == dtype
                check(front.array(result), wanted, dtype)
                np.testing.assert_array_equal(front.array(tensor), inputs[hvd.rank()])
                (later,) = front.at_once([("allreduce", tensor, {"op": getattr(hvd, op)})])
                check(front.array(later), wanted, dtype)
                if "in place" in front.has:
                    assert hvd.allreduce_(tensor, op=getattr(hvd, op)) is tensor
                    check(front.array(tensor), wanted, dtype)

    world.run(body)


def test_bool(world):
    """Truth has "or" for a sum and "and" for a product."""

    def body(front):
        hvd = front.hvd
        inputs = [values(rank, (41,), "bool") for rank in range(hvd.size())]
        for op in ("Sum", "Max", "Min", "Product"):
            result = hvd.allreduce(front.tensor(inputs[hvd.rank()], "bool"), op=getattr(hvd, op))
            check(front.array(result), expected(inputs, op, "bool"), "bool")

    world.run(body)


def test_average_of_integers_is_truncated_toward_zero(world):
    def body(front):
        hvd = front.hvd
        first = [-3, 3, -1, 1, 0]
        result = hvd.allreduce(front.tensor(first if hvd.rank() == 0 else [0] * 5, "int32"))
        np.testing.assert_array_equal(front.array(result), np.trunc(np.array(first) / hvd.size()).astype(np.int32))

    world.run(body)


@pytest.mark.needs("rounded once")
@pytest.mark.parametrize("dtype", FLOATS)
def test_average_of_equal_values_is_that_value(world, dtype):
    """Where their sum is exact, the average is: it is divided by the size, not multiplied with a rounded 1/size."""

    def body(front):
        hvd = front.hvd
        same = np.arange(-30, 31) / 8
        np.testing.assert_array_equal(front.array(hvd.allreduce(front.tensor(same, dtype))), same)

    world.run(body)


@pytest.mark.needs("rounded once")
def test_half_precision_sums_in_single_precision(world):
    """2048 + 1 + 1 + 1 in float16 alone would stay 2048."""

    def body(front):
        hvd = front.hvd
        mine = 2048.0 if hvd.rank() == 0 else 1.0
        result = hvd.allreduce(front.tensor([mine], "float16"), op=hvd.Sum)
        assert front.array(result)[0] == np.float16(2048.0 + hvd.size() - 1)

    world.run(body)


def test_large(world):
    """Five million elements go through every algorithm's pipeline."""

    def body(front):
        hvd = front.hvd
        count = 5_000_011
        mine = np.arange(count, dtype=np.float32) % 1000 + hvd.rank()
        tensor = front.tensor(mine)
        wanted = np.arange(count, dtype=np.float32) % 1000 * hvd.size() + sum(range(hvd.size()))
        np.testing.assert_array_equal(front.array(hvd.allreduce(tensor, op=hvd.Sum)), wanted)

    world.run(body)


def test_scales(world):
    """Scales are applied one after the other: integers in float64, truncated; the others in their type."""

    def body(front):
        hvd = front.hvd
        size = hvd.size()
        mine = np.arange(10) - 5
        result = hvd.allreduce(front.tensor(mine, "int32"), op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
        wanted = np.trunc(np.trunc(mine * 0.5) * size * 3.0)
        np.testing.assert_array_equal(front.array(result), wanted)
        result = hvd.allreduce(front.tensor(mine / 4), prescale_factor=0.5, postscale_factor=4.0)
        np.testing.assert_allclose(front.array(result), mine / 2, rtol=1e-6)

    world.run(body)


@pytest.mark.needs("rounded once")
def test_scales_are_exact(world):
    """Where Horovod's tests want equality: each factor is rounded to the type, whole numbers via float64."""
    if world.size > 2:
        pytest.skip("the sum of more than two is rounded, too")

    def body(front):
        hvd = front.hvd
        size = hvd.size()
        noise = np.random.default_rng(1234)
        factor = float(noise.uniform())
        whole = noise.integers(-100, 100, size=(17, 17))
        for dtype in filter(front.dtypes.__contains__, ("int32", "int64", "float16", "float32", "float64")):
            stored = whole.astype(dtype)
            work = {"float16": np.float32, "float32": np.float32}.get(dtype, np.float64)
            before = hvd.allreduce(front.tensor(stored, dtype), op=hvd.Sum, prescale_factor=factor)
            scaled = (stored.astype(work) * work(factor)).astype(dtype)
            np.testing.assert_array_equal(front.array(before), scaled * np.array(size, dtype))
            after = hvd.allreduce(front.tensor(stored, dtype), op=hvd.Sum, postscale_factor=factor)
            np.testing.assert_array_equal(
                front.array(after), ((stored * np.array(size, dtype)).astype(work) * work(factor)).astype(dtype)
            )

    world.run(body)


def test_average_argument_of_horovod(world):
    def body(front):
        import warnings

        hvd = front.hvd
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            total = hvd.allreduce(front.tensor([1.0]), average=False)
            mean = hvd.allreduce(front.tensor([1.0]), average=True)
        of_ours = [warning.category for warning in caught if "average is deprecated" in str(warning.message)]
        assert of_ours == [DeprecationWarning] * 2
        assert (front.number(total), front.number(mean)) == (hvd.size(), 1.0)
        try:
            hvd.allreduce(front.tensor([1.0]), average=True, op=hvd.Sum)
        except ValueError as error:
            assert "supersedes average" in str(error)
        else:
            raise AssertionError("both op and average were taken")

    world.run(body)


def test_compression(world):
    def body(front):
        hvd = front.hvd
        mine = np.array([1.0, 2.5, -3.0]) + hvd.rank()
        wanted = np.array([1.0, 2.5, -3.0]) + (hvd.size() - 1) / 2
        for compression in (getattr(hvd.Compression, name) for name in front.compressions):
            result = hvd.allreduce(front.tensor(mine, "float32"), compression=compression)
            assert front.dtype(result) == "float32"
            np.testing.assert_allclose(front.array(result), wanted, rtol=1e-2)
        whole = hvd.allreduce(front.tensor([70000], "int32"), compression=hvd.Compression.fp16)
        assert front.number(whole) == 70000

    world.run(body)


@pytest.mark.needs("grouped")
def test_grouped(world):
    """Tensors of different shapes and types go together; results come in order."""

    def body(front):
        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()
        half = "bfloat16" if "bfloat16" in front.dtypes else "float16"
        shapes = [((3, 2), "float32"), ((5,), "float64"), ((), "int32"), ((0,), "float32"), ((1000,), half)]

        def make(of):
            return [front.tensor(values(of, shape, dtype), dtype) for shape, dtype in shapes]

        wanted = [
            expected([values(each, shape, dtype) for each in range(size)], "Sum", dtype) for shape, dtype in shapes
        ]
        forms = [
            hvd.grouped_allreduce(make(rank), op=hvd.Sum),
            *front.at_once([("grouped_allreduce", make(rank), {"op": hvd.Sum, "name": "together"})]),
        ]
        if "in place" in front.has:
            in_place = make(rank)
            forms += [hvd.grouped_allreduce_(in_place, op=hvd.Sum), in_place]
        if "handles" in front.has:
            forms += [hvd.synchronize(hvd.grouped_allreduce_async_(make(rank), op=hvd.Sum))]
        for results in forms:
            assert len(results) == len(shapes)
            for result, total, (_, dtype) in zip(results, wanted, shapes, strict=True):
                check(front.array(result), total, dtype)
        assert hvd.grouped_allreduce([]) == []

    world.run(body)


@pytest.mark.parametrize("op", ["Average", "Sum"])
@pytest.mark.needs("gradients")
def test_gradient(world, op):
    """The gradient is the same reduction of the gradients, which differ from rank to rank here."""

    def body(front):
        hvd = front.hvd
        weight = hvd.rank() + 1.0
        how = getattr(hvd, op)
        gradient = front.gradient(
            lambda tensor: front.sum(weight * hvd.allreduce(tensor, op=how, postscale_factor=2.0)), np.ones((2, 3))
        )
        total = sum(range(1, hvd.size() + 1)) * 2.0
        np.testing.assert_allclose(gradient, np.full((2, 3), total if op == "Sum" else total / hvd.size()))
        gradient = front.gradient(
            lambda tensor: sum(
                front.sum(weight * each) for each in hvd.grouped_allreduce([tensor, tensor * 2], op=how)
            ),
            np.ones(4),
        )
        grouped = sum(range(1, hvd.size() + 1)) * 3.0
        np.testing.assert_allclose(gradient, np.full(4, grouped if op == "Sum" else grouped / hvd.size()))

    world.run(body)


@pytest.mark.parametrize("op", ["Min", "Max", "Product"])
@pytest.mark.needs("gradients")
def test_gradient_of_extremes_and_products(world, op):
    """What the framework gives for the same calculation in one process, with the ranks' losses added up."""

    def body(front):
        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()
        noise = np.random.default_rng(1)
        given = noise.integers(-2, 3, size=(size, 30)).astype(np.float64)  # With zeros, and with ties.
        weights = noise.normal(size=(size, 30))

        def alone(stacked, prescale, postscale):
            reduced = front.reduced(stacked * prescale, op) * postscale
            return front.sum(reduced * front.tensor(weights.sum(0), "float64"))

        for prescale, postscale in ((1.0, 1.0), (-2.0, 0.5)):
            wanted = front.gradient(lambda stacked, p=prescale, q=postscale: alone(stacked, p, q), given)[rank]
            how = {"op": getattr(hvd, op), "prescale_factor": prescale, "postscale_factor": postscale}

            def weighted(tensor):
                return front.sum(tensor * front.tensor(weights[rank], "float64"))

            gradient = front.gradient(lambda tensor, how=how: weighted(hvd.allreduce(tensor, **how)), given[rank])
            np.testing.assert_allclose(gradient, wanted, rtol=1e-12, atol=1e-12)
            gradient = front.gradient(
                lambda tensor, how=how: sum(
                    weighted(each) for each in hvd.grouped_allreduce([tensor, tensor * 1], **how)
                ),
                given[rank],
            )
            np.testing.assert_allclose(gradient, wanted * 2, rtol=1e-12, atol=1e-12)

    world.run(body)


@pytest.mark.needs("gradients")
def test_gradient_of_each_output_of_a_group(world):
    """Outputs may be differentiated one by one: the others then have gradients of zero."""

    def body(front):
        hvd = front.hvd
        gradient = front.gradient(lambda tensor: front.sum(hvd.grouped_allreduce([tensor, tensor * 2])[1]), np.ones(3))
        np.testing.assert_allclose(gradient, np.full(3, 2.0))

    world.run(body)


def test_no_average_of_truth(world):
    def body(front):
        hvd = front.hvd
        truth = front.tensor([True, False], "bool")
        further = [hvd.allreduce_] if "in place" in front.has else []
        for call in (hvd.allreduce, lambda tensor: front.at_once([("allreduce", tensor, {})]), *further):
            try:
                call(truth)
            except ValueError as error:
                assert "not supported" in str(error) and "hvd.Max" in str(error)
            else:
                raise AssertionError("truth has an average")

    world.run(body)
