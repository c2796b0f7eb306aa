"""allreduce with a compression that is a part of it: how far off, what is remembered, what is refused."""

from __future__ import annotations

import pytest


def recipes(hvd):
    compression = hvd.Compression
    return {"int8": compression.int8, "topk": compression.topk(0.05), "powersgd": compression.powersgd(2)}


@pytest.mark.parametrize("name", ["int8", "topk", "powersgd"])
def test_what_is_not_sent_comes_later(world, name):
    """The sum of all results, and what all ranks still owe, is the sum of what they have put in."""

    def body(front, name):
        import torch

        hvd = front.hvd
        memory = recipes(hvd)[name].with_feedback()
        generator = torch.Generator().manual_seed(hvd.rank())
        put_in, came_out = torch.zeros(60, 50), torch.zeros(60, 50)
        for step in range(8):
            tensor = torch.randn(60, 50, generator=generator)
            put_in += tensor
            result = hvd.allreduce(tensor, name="owed", op=hvd.Sum, compression=memory)
            assert len(set(hvd.allgather_object(result.numpy().tobytes(), name=f"same.{step}"))) == 1
            came_out += result
        (state,) = memory.states.values()
        residual = (state if isinstance(state, torch.Tensor) else state.residual).view(60, 50)
        all_put_in = hvd.allreduce(put_in, name="put_in", op=hvd.Sum)
        all_owed = hvd.allreduce(residual, name="all_owed", op=hvd.Sum)
        torch.testing.assert_close(came_out + all_owed, all_put_in, rtol=1e-4, atol=1e-3)
        if hvd.size() > 1:
            assert float(residual.abs().max()) > 0
        memory.forget()
        assert not memory.states

    world.run(body, name)


def test_forms(world):
    """Types, shapes, averages and groups of tensors; without a memory."""

    def body(front):
        import torch

        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()
        for name, recipe in recipes(hvd).items():
            for dtype in (torch.float32, torch.float16, torch.bfloat16):
                for shape in ((), (1,), (0,), (0, 5), (7, 3), (40, 30)):
                    tensor = torch.zeros(shape, dtype=dtype)
                    if tensor.numel():
                        tensor.view(-1)[-1] = rank + 1.0
                    sent = tensor.clone()
                    for op, wanted in ((hvd.Sum, size * (size + 1) / 2), (hvd.Average, (size + 1) / 2)):
                        result = hvd.allreduce(tensor, name=f"form.{name}", op=op, compression=recipe)
                        assert result.dtype == dtype and result.shape == shape
                        assert torch.equal(tensor, sent)
                        if tensor.numel():
                            assert float(result.view(-1)[-1]) == pytest.approx(wanted, rel=1e-2)
            several = [torch.full((64,), 1.0), torch.ones(30, 20, dtype=torch.bfloat16)]
            for result in hvd.grouped_allreduce(several, name="several", op=hvd.Sum, compression=recipe):
                assert float(result.float().max()) == pytest.approx(size, rel=1e-2)

    world.run(body)


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


def test_what_is_not_finite_arrives_and_is_forgotten(world):
    def body(front):
        import math

        import torch

        hvd = front.hvd
        for name, recipe in recipes(hvd).items():
            memory = recipe.with_feedback()
            for odd in (math.nan, math.inf):
                tensor = torch.ones(40, 40)
                if hvd.rank() == hvd.size() - 1:
                    tensor[3, 4] = odd
                result = hvd.allreduce(tensor, name=name, compression=memory)
                assert not result[3, 4].isfinite()
                for _ in range(2):
                    result = hvd.allreduce(torch.ones(40, 40), name=name, compression=memory)
                    assert result.isfinite().all()

    world.run(body)


def test_refused(world):
    def body(front):
        import torch

        hvd = front.hvd

        def refused(words, **how):
            tensor = how.pop("tensor", torch.ones(20, 20))
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
            refused("contiguous", compression=recipe, tensor=torch.ones(20, 20).t()[1:])
        for recipe in (hvd.Compression.int8, hvd.Compression.topk(0.5)):
            refused("not for float64", compression=recipe, tensor=torch.ones(3, dtype=torch.float64))
        for make, wrong in ((hvd.Compression.topk, 0), (hvd.Compression.topk, 1.5), (hvd.Compression.powersgd, 0)):
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
        import torch

        hvd = front.hvd
        compression = hvd.Compression.int8 if hvd.rank() == 0 else hvd.Compression.topk(0.25)
        try:
            hvd.allreduce(torch.ones(5), name="disagreed", compression=compression)
        except hvd.HorovodInternalError as error:
            assert "Mismatched compression for 'allreduce.disagreed': rank 0 asked for int8" in str(error), error
            assert "topk(0.25)" in str(error), error
        else:
            raise AssertionError("they have agreed")

    world.run(body)


def test_a_rank_that_has_joined_adds_nothing(world):
    def body(front):
        import torch

        hvd = front.hvd
        if hvd.rank() > 0 or hvd.size() == 1:
            for name, recipe in recipes(hvd).items():
                result = hvd.allreduce(torch.ones(30, 30), name=f"joined.{name}", op=hvd.Sum, compression=recipe)
                assert float(result.max()) == pytest.approx(max(hvd.size() - 1, 1), rel=1e-2)
        hvd.join()

    world.run(body)
