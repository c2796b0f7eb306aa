"""allreduce with a compression that is a part of it: how far off, what is remembered, what is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytestmark = pytest.mark.needs("recipes")


def recipes(hvd):
    compression = hvd.Compression
    found = {"int8": compression.int8, "topk": compression.topk(0.05)}
    # It needs a framework's matrix products.
    return {**found, "powersgd": compression.powersgd(2)} if hasattr(compression, "powersgd") else found


@pytest.mark.parametrize("name", ["int8", "topk", pytest.param("powersgd", marks=pytest.mark.needs("torch"))])
@pytest.mark.needs("feedback")
def test_rest_that_was_not_sent_is_sent_later(world, name):
    """The sum of all results, and what all ranks still owe, is the sum of what they have put in."""

    def body(front, name):
        hvd = front.hvd
        memory = recipes(hvd)[name].with_feedback()
        noise = np.random.default_rng(hvd.rank())
        put_in, came_out = np.zeros((60, 50), np.float32), np.zeros((60, 50), np.float32)
        for step in range(8):
            values = noise.standard_normal((60, 50), np.float32)
            put_in += values
            result = front.array(hvd.allreduce(front.tensor(values), name="owed", op=hvd.Sum, compression=memory))
            assert len(set(hvd.allgather_object(result.tobytes(), name=f"same.{step}"))) == 1
            came_out += result
        (state,) = memory.states.values()
        residual = front.array(getattr(state, "residual", state)).reshape(60, 50)
        all_put_in = front.array(hvd.allreduce(front.tensor(put_in), name="put_in", op=hvd.Sum))
        all_owed = front.array(hvd.allreduce(front.tensor(residual), name="all_owed", op=hvd.Sum))
        np.testing.assert_allclose(came_out + all_owed, all_put_in, rtol=1e-4, atol=1e-3)
        if hvd.size() > 1:
            assert np.abs(residual).max() > 0
        memory.forget()
        assert not memory.states

    world.run(body, name)


def test_forms(world):
    """Types, shapes, averages and groups of tensors; without a memory."""

    def body(front):
        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()
        dtypes = [dtype for dtype in ("float32", "float16", "bfloat16") if dtype in front.dtypes]
        for name, recipe in recipes(hvd).items():
            for dtype in dtypes:
                for shape in ((), (1,), (0,), (0, 5), (7, 3), (40, 30)):
                    sent = np.zeros(shape)
                    sent.reshape(-1)[-1:] = rank + 1.0
                    tensor = front.tensor(sent, dtype)
                    for op, wanted in ((hvd.Sum, size * (size + 1) / 2), (hvd.Average, (size + 1) / 2)):
                        result = hvd.allreduce(tensor, name=f"form.{name}", op=op, compression=recipe)
                        assert front.dtype(result) == dtype and result.shape == shape
                        np.testing.assert_array_equal(front.array(tensor), sent)
                        if sent.size:
                            assert front.array(result).reshape(-1)[-1] == pytest.approx(wanted, rel=1e-2)
            several = [front.tensor(np.ones(64)), front.tensor(np.ones((30, 20)), dtypes[-1])]
            for result in hvd.grouped_allreduce(several, name="several", op=hvd.Sum, compression=recipe):
                assert front.array(result).max() == pytest.approx(size, rel=1e-2)

    world.run(body)


@pytest.mark.needs("torch")
def test_scales_and_gradients(world):
    def body(front):
        import torch

        hvd = front.hvd
        for name, recipe in recipes(hvd).items():
            tensor = torch.full((32, 32), 2.0, requires_grad=True)
            result = hvd.allreduce(
                tensor, name=name, op=hvd.Average, compression=recipe, prescale_factor=3.0, postscale_factor=0.5
            )
            assert float(result.max()) == pytest.approx(3.0, rel=1e-2)
            result.sum().backward()
            assert torch.allclose(tensor.grad, torch.full((32, 32), 1.5))

    world.run(body)


@pytest.mark.needs("feedback")
def test_values_that_are_not_finite_arrive_and_are_forgotten(world):
    def body(front):
        hvd = front.hvd
        for name, recipe in recipes(hvd).items():
            memory = recipe.with_feedback()
            for odd in (np.nan, np.inf):
                values = np.ones((40, 40))
                if hvd.rank() == hvd.size() - 1:
                    values[3, 4] = odd
                result = hvd.allreduce(front.tensor(values), name=name, compression=memory)
                assert not np.isfinite(front.array(result)[3, 4])
                for _ in range(2):
                    result = hvd.allreduce(front.tensor(np.ones((40, 40))), name=name, compression=memory)
                    assert np.isfinite(front.array(result)).all()

    world.run(body)


def test_refused(world):
    def body(front):
        hvd = front.hvd

        def refused(words, **how):
            tensor = how.pop("tensor", front.tensor(np.ones((20, 20))))
            try:
                hvd.allreduce(tensor, **{"name": "refused", **how})
            except ValueError as error:
                assert words in str(error), error
            else:
                raise AssertionError(f"it was taken: {how}")

        for recipe in recipes(hvd).values():
            refused("op=hvd.Average and op=hvd.Sum", compression=recipe, op=hvd.Max)
            refused("op=hvd.Average and op=hvd.Sum", compression=recipe, op=hvd.Adasum)
            refused("pass name=", compression=recipe.with_feedback(), name=None)
            for tensor, words in front.unsendable() + front.unreducible():
                refused(words, compression=recipe, tensor=tensor)
        for recipe in (hvd.Compression.int8, hvd.Compression.topk(0.5)):
            refused("not for float64", compression=recipe, tensor=front.tensor(np.ones(3), "float64"))
        wrong_arguments = [(hvd.Compression.topk, 0), (hvd.Compression.topk, 1.5)]
        wrong_arguments += [(hvd.Compression.powersgd, 0)] if hasattr(hvd.Compression, "powersgd") else []
        for make, wrong in wrong_arguments:
            try:
                make(wrong)
            except ValueError:
                continue
            raise AssertionError("it was made")

    world.run(body)


def test_ranks_must_agree_on_it(world):
    if world.size == 1:
        pytest.skip("nobody to disagree with")

    def body(front):
        hvd = front.hvd
        compression = hvd.Compression.int8 if hvd.rank() == 0 else hvd.Compression.topk(0.25)
        try:
            hvd.allreduce(front.tensor(np.ones(5)), name="disagreed", compression=compression)
        except hvd.HorovodInternalError as error:
            assert re.search("Mismatched compression for '.*allreduce.disagreed': rank 0 asked for int8", str(error)), (
                error
            )
            assert "topk(0.25)" in str(error), error
        else:
            raise AssertionError("they have agreed")

    world.run(body)


@pytest.mark.needs("join")
def test_a_rank_that_has_joined_adds_nothing(world):
    def body(front):
        hvd = front.hvd
        if hvd.rank() > 0 or hvd.size() == 1:
            for name, recipe in recipes(hvd).items():
                ones = front.tensor(np.ones((30, 30)))
                result = hvd.allreduce(ones, name=f"joined.{name}", op=hvd.Sum, compression=recipe)
                assert front.array(result).max() == pytest.approx(max(hvd.size() - 1, 1), rel=1e-2)
        hvd.join()

    world.run(body)
