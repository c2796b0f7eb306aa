"""How a batch is taken apart into passes, what is refused, and what gradients several passes come to."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

import farandole.torch as hvd
from farandole.torch.elastic.gradient_passes import TorchPasses, split, square


class Pair(NamedTuple):
    x: torch.Tensor
    y: list[str]


def test_batches_of_tensors_and_lists_are_split() -> None:
    x = torch.arange(6.0).reshape(3, 2)
    first, second = split(Pair(x, ["a", "b", "c"]), [2, 1])
    assert isinstance(first, Pair) and torch.equal(first.x, x[:2]) and first.y == ["a", "b"]
    assert torch.equal(second.x, x[2:]) and second.y == ["c"]
    parts = split({"x": [x, (x, x)]}, [1, 1, 1])
    assert torch.equal(parts[2]["x"][1][0], x[2:])


@pytest.mark.parametrize("data", [torch.ones(4), (torch.ones(3), 5), "abc", {"x": None}])
def test_batch_that_cannot_be_split_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match=r"cannot split a batch of 3 samples into passes.* collate_fn"):
        split(data, [2, 1])


def test_square_is_the_squared_norm_of_dense_and_sparse_tensors() -> None:
    assert float(square(torch.tensor([[3.0, 4.0]]))) == 25.0
    assert float(square(torch.tensor([3.0, 4.0], dtype=torch.bfloat16))) == 25.0
    stored = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.tensor([1.0, 2.0]), (4,), check_invariants=False)
    assert float(square(stored)) == 9.0  # the same place twice


@pytest.fixture
def alone() -> Any:
    hvd.init()
    yield
    hvd.shutdown()


@pytest.mark.parametrize("sizes", [[5], [3, 2], [2, 2, 1]])
@pytest.mark.parametrize("zero_first", [True, False])
def test_gradients_of_passes_are_the_mean_over_all_samples(alone: None, sizes: list[int], zero_first: bool) -> None:
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 1).double()
    x = torch.randn(5, 3).double()
    expected = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
    optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0))
    passes = TorchPasses([optimizer])
    for _ in range(2):  # the second step begins with the gradients of the first
        for number, part in enumerate(split(x, sizes)):
            passes.begin(number, sizes, measures=True)
            if zero_first:
                optimizer.zero_grad()
            model(part).square().mean().backward()
            optimizer.step()
            found = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
            if not zero_first:
                optimizer.zero_grad()
        torch.testing.assert_close(found, list(expected))
        first, own, whole = passes.squares()
        assert own == whole == pytest.approx(float(sum(each.square().sum() for each in expected)))
        head = torch.autograd.grad(model(x[: sizes[0]]).square().mean(), list(model.parameters()))
        assert first == (pytest.approx(float(sum(each.square().sum() for each in head))) if len(sizes) > 1 else 0.0)


def test_adaptive_batch_refuses_optimizers_and_options_that_it_cannot_use(alone: None) -> None:
    model = torch.nn.Linear(2, 1)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = hvd.elastic.ElasticLoader(torch.ones(8, 2), batch_size=2)
    batches = hvd.elastic.AdaptiveBatch(2, 8)

    def steps(optimizer: Any, **how: Any) -> None:
        hvd.elastic.steps(loader, batches=batches, optimizer=optimizer, **how)

    with pytest.raises(ValueError, match=r"this is a SGD: pass hvd.DistributedOptimizer"):
        steps(plain)
    with pytest.raises(ValueError, match=r"op=hvd.Average"):
        steps(hvd.DistributedOptimizer(plain, op=hvd.Sum))
    with pytest.raises(ValueError, match="leave backward_passes_per_step"):
        steps(hvd.DistributedOptimizer(plain, backward_passes_per_step=2))
    with pytest.raises(ValueError, match="both rate and batches"):
        steps(hvd.DistributedOptimizer(plain), rate=hvd.elastic.LinearScaling())
