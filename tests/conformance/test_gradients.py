"""A collective is a function like any other to a framework's differentiation.

One forward pass may serve several losses, be differentiated again and again, and its gradient may be differentiated in
turn. What the gradients of each collective are is declared in `worker.collectives`; here, numpy has the same rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

pytestmark = pytest.mark.needs("gradients")

# One array from each rank.
Arrays = list[np.ndarray]


class Case(NamedTuple):
    """A collective with linear outputs, whose arrays all have shape [2 * ranks, 3].

    Attributes:
        call: from (module, list of tensors) to the list of outputs.
        forward: from the ranks' inputs to their outputs.
        backward: from the gradients of the ranks' outputs to those of their inputs.
        twice: from the gradients of what `backward` returns to those of its arguments.
    """

    call: Callable[[Any, list[Any]], list[Any]]
    forward: Callable[[Arrays], Arrays]
    backward: Callable[[Arrays], Arrays]
    twice: Callable[[Arrays], Arrays]


def one_by_one(method: str, *arguments: Any, **options: Any) -> Callable[[Any, list[Any]], list[Any]]:
    return lambda hvd, tensors: [
        getattr(hvd, method)(tensor, *arguments, **_options(hvd, options)) for tensor in tensors
    ]


def grouped(method: str, **options: Any) -> Callable[[Any, list[Any]], list[Any]]:
    return lambda hvd, tensors: list(getattr(hvd, method)(tensors, **_options(hvd, options)))


def _options(hvd: Any, options: dict[str, Any]) -> dict[str, Any]:
    return {name: getattr(hvd, value) if name == "op" else value for name, value in options.items()}


def everywhere(function: Callable[[Arrays], np.ndarray]) -> Callable[[Arrays], Arrays]:
    return lambda arrays: [function(arrays)] * len(arrays)


def added(arrays: Arrays) -> np.ndarray:
    return np.sum(arrays, axis=0)


def mean(arrays: Arrays) -> np.ndarray:
    return np.mean(arrays, axis=0)


def rows_of(array: np.ndarray, size: int) -> Arrays:
    return np.split(array, size)


def exchanged(arrays: Arrays) -> Arrays:
    return [np.concatenate(parts) for parts in zip(*(rows_of(array, len(arrays)) for array in arrays), strict=True)]


def at_root(arrays: Arrays) -> Arrays:
    return [mean(arrays), *[np.zeros_like(array) for array in arrays[1:]]]


def scattered(arrays: Arrays) -> Arrays:
    return rows_of(added(arrays), len(arrays))


GATHER = (
    everywhere(np.concatenate),
    lambda arrays: rows_of(mean(arrays), len(arrays)),
    everywhere(lambda arrays: np.concatenate(arrays) / len(arrays)),
)
SCATTER = (scattered, everywhere(lambda arrays: np.concatenate(arrays) * len(arrays)), scattered)
SUM = (everywhere(lambda arrays: added(arrays) * 2),) * 3
AVERAGE = (everywhere(mean),) * 3
BROADCAST = (
    everywhere(lambda arrays: arrays[0]),
    at_root,
    everywhere(lambda arrays: arrays[0] / len(arrays)),
)

REDUCE = (
    lambda arrays: [added(arrays), *arrays[1:]],
    everywhere(lambda arrays: arrays[0]),
    lambda arrays: [added(arrays), *[np.zeros_like(array) for array in arrays[1:]]],
)

CASES = {
    "allreduce": Case(one_by_one("allreduce", op="Sum", postscale_factor=2.0), *SUM),
    "average": Case(one_by_one("allreduce"), *AVERAGE),
    "grouped_allreduce": Case(grouped("grouped_allreduce", op="Sum", prescale_factor=2.0), *SUM),
    "allgather": Case(one_by_one("allgather"), *GATHER),
    "grouped_allgather": Case(grouped("grouped_allgather"), *GATHER),
    "broadcast": Case(one_by_one("broadcast", 0), *BROADCAST),
    "reducescatter": Case(one_by_one("reducescatter", op="Sum"), *SCATTER),
    "grouped_reducescatter": Case(grouped("grouped_reducescatter", op="Sum"), *SCATTER),
    "reduce": Case(one_by_one("reduce", 0, op="Sum"), *REDUCE),
    "grouped_reduce": Case(grouped("grouped_reduce", root_rank=0, op="Sum"), *REDUCE),
    "alltoall": Case(one_by_one("alltoall"), exchanged, exchanged, exchanged),
}


def noise(size: int, seed: int) -> Arrays:
    """Return one array of [2 * size, 3] for each rank, the same on all ranks."""
    return list(np.random.default_rng(seed).normal(size=(size, 2 * size, 3)))


def close(actual: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(actual, wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kind", CASES)
def test_outputs_of_one_call_in_several_losses(world, kind):
    """Each output by itself, both together, and each of them again, after one forward pass."""

    def body(front):
        hvd, case = front.hvd, CASES[kind]
        size, rank = hvd.size(), hvd.rank()
        shapes = [[output.shape for output in case.forward(noise(size, 0))]] * 2
        weights = [
            [np.random.default_rng((seed, index)).normal(size=shape) for index, shape in enumerate(row)]
            for seed, row in enumerate(shapes)
        ]
        first, second = (case.backward(row)[rank] for row in weights)
        one, other = (row[rank] for row in weights)
        found = front.pullbacks(
            lambda tensor: case.call(hvd, [tensor, tensor * 3.0]),
            noise(size, 0)[rank],
            [(one, None), (None, other), (one, other), (None, other), (one, None)],
        )
        for actual, wanted in zip(found, (first, 3 * second, first + 3 * second, 3 * second, first), strict=True):
            close(actual, wanted)

    world.run(body)


@pytest.mark.parametrize("kind", CASES)
def test_gradient_of_the_gradient(world, kind):
    """A penalty on the gradient of a loss that is not linear in the outputs, as in a WGAN."""

    def body(front):
        hvd, case = front.hvd, CASES[kind]
        size, rank = hvd.size(), hvd.rank()
        inputs = noise(size, 0)
        outputs = case.forward(inputs)
        weights = [np.random.default_rng((1, index)).normal(size=each.shape) for index, each in enumerate(outputs)]

        def loss(tensor):
            (output,) = case.call(hvd, [tensor])
            return front.sum(front.tensor(weights[rank], "float64") * output * output)

        def penalty(tensor):
            gradient = front.derivative(loss, tensor)
            return front.sum(gradient * gradient)

        gradients = case.backward([2 * w * y for w, y in zip(weights, outputs, strict=True)])
        through = case.twice([2 * gradient for gradient in gradients])
        wanted = case.backward([2 * w * t for w, t in zip(weights, through, strict=True)])
        close(front.gradient(penalty, inputs[rank]), wanted[rank])

    world.run(body)


@pytest.mark.parametrize("op", ["Min", "Max", "Product"])
def test_gradient_of_the_gradient_of_extremes_and_products(world, op):
    """What the framework gives for the same calculation in one process, with the ranks' penalties added up."""

    def body(front):
        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()
        random = np.random.default_rng(2)
        given = random.integers(-2, 3, size=(size, 30)).astype(np.float64)
        if op != "Product":  # Ties have no second derivative; zeros of a product do.
            given += random.normal(size=given.shape)
        weights = random.normal(size=(size, 30))

        def alone(stacked):
            total = front.reduced(stacked * -1.5, op)
            return front.sum(total * total * front.tensor(weights.sum(0), "float64"))

        def shared(tensor):
            total = hvd.allreduce(tensor, op=getattr(hvd, op), prescale_factor=-1.5)
            return front.sum(total * total * front.tensor(weights[rank], "float64"))

        def penalty(loss):
            def of(tensor):
                gradient = front.derivative(loss, tensor)
                return front.sum(gradient * gradient)

            return of

        wanted = front.gradient(penalty(alone), given)[rank]
        np.testing.assert_allclose(front.gradient(penalty(shared), given[rank]), wanted, rtol=1e-9, atol=1e-9)

    world.run(body)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("kind", CASES)
def test_losses_of_one_call_without_retain_graph(world, kind):
    """A linear collective needs nothing of the forward pass, so nothing is freed, as in an addition."""

    def body(front):
        import torch

        hvd, case = front.hvd, CASES[kind]
        tensor = torch.tensor(noise(hvd.size(), 0)[hvd.rank()], requires_grad=True)
        one, other = case.call(hvd, [tensor, tensor])
        cotangents = [np.ones(output.shape) for output in case.forward(noise(hvd.size(), 0))]
        wanted = case.backward(cotangents)[hvd.rank()]
        for number, output in enumerate((one, one, other, other), 1):
            output.backward(torch.ones_like(output))
            close(front.array(tensor.grad), number * wanted)

    world.run(body)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("kind", CASES)
def test_hooks_and_no_grad(world, kind):
    def body(front):
        import torch

        hvd, case = front.hvd, CASES[kind]
        tensor = torch.tensor(noise(hvd.size(), 0)[hvd.rank()], requires_grad=True)
        wanted = case.backward([np.ones(output.shape) for output in case.forward(noise(hvd.size(), 0))])[hvd.rank()]
        with torch.no_grad():
            (output,) = case.call(hvd, [tensor])
        assert not output.requires_grad
        (output,) = case.call(hvd, [tensor])
        seen = []
        output.register_hook(lambda gradient: gradient * 3)
        tensor.register_hook(lambda gradient: seen.append(gradient.clone()))
        output.grad_fn.register_hook(lambda into, out: seen.append(into[0].clone()))
        output.sum().backward()
        for gradient in (*seen, tensor.grad):
            close(front.array(gradient), 3 * wanted)
        assert len(seen) == 2

    world.run(body)


@pytest.mark.needs("torch")
def test_saved_inputs_are_freed_as_usual(world):
    """Min, Max and Product need their inputs, so a second backward pass needs `retain_graph`, as in `torch.prod`."""

    def body(front):
        import torch

        hvd = front.hvd
        for op in (hvd.Min, hvd.Max, hvd.Product):
            tensor = torch.ones(3, requires_grad=True)
            one, other = hvd.grouped_allreduce([tensor, tensor], op=op)
            one.sum().backward(retain_graph=True)
            other.sum().backward()
            with pytest.raises(RuntimeError, match="retain_graph=True"):
                one.sum().backward()
            saved = hvd.allreduce(tensor, op=op)
            with torch.no_grad():
                tensor.add_(1)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                saved.sum().backward()

    world.run(body)


@pytest.mark.needs("torch")
def test_groups_of_whole_numbers_and_floats(world):
    def body(front):
        import torch

        hvd = front.hvd
        tensor, whole = torch.ones(3, requires_grad=True), torch.arange(3)
        for call in (hvd.grouped_allreduce, hvd.grouped_allgather, hvd.grouped_reducescatter):
            gathered, counts = call([tensor.repeat(hvd.size()), whole.repeat(hvd.size())])
            assert gathered.requires_grad and not counts.requires_grad
            gathered.sum().backward()
        assert tensor.grad is not None

    world.run(body)


@pytest.mark.needs("torch")
def test_torch_func(world):
    """The functional transforms see a collective as any other function."""

    def body(front):
        import torch

        hvd = front.hvd
        size = hvd.size()
        tensor = torch.full((2 * size,), 2.0)
        gradient = torch.func.grad(lambda given: (hvd.allreduce(given, op=hvd.Sum) ** 2).sum())(tensor)
        close(front.array(gradient), np.full(2 * size, 4.0 * size**2))
        outputs, pull = torch.func.vjp(lambda given: hvd.allgather(given), tensor)
        for factor in (1.0, 2.0):
            (gradient,) = pull(torch.full_like(outputs, factor))
            close(front.array(gradient), np.full(2 * size, factor))

    world.run(body)
